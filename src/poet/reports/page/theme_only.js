// A page without charts has one thing to switch: light and dark.
"use strict";

const themeButton = document.getElementById("theme");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let isDark = prefersDark.matches;

function showTheme() {
  document.documentElement.style.colorScheme = isDark ? "dark" : "light";
  themeButton.textContent = isDark ? "Light" : "Dark";
}

function showThemeAs(dark) {
  isDark = dark;
  showTheme();
}

themeButton.hidden = false;
themeButton.addEventListener("click", () => showThemeAs(!isDark));
showTheme();
