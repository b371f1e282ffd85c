// Inside another page this one says how high it is, and follows the other's light and dark.
if (window.parent !== window) {
  const tell = () => parent.postMessage({ poet: "height", pixels: document.body.scrollHeight }, "*");
  new ResizeObserver(tell).observe(document.body);
  themeButton.hidden = true;
  addEventListener("message", (event) => {
    if (event.source !== parent || event.data?.poet !== "theme") return;
    showThemeAs(event.data.dark === true);
  });
  tell();
}
