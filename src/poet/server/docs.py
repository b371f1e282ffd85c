"""The description of the API for people: OpenAPI as one page without a script."""

from typing import Any

from poet.reports.page.markup import Markup, join, tag


def docs_page(schema: dict[str, Any]) -> str:
    operations = [
        _operation(method, path, about)
        for path, methods in schema["paths"].items()
        for method, about in methods.items()
    ]
    values = [_value(name, about) for name, about in schema["components"]["schemas"].items()]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", "POET: the API"),
    )
    main = tag(
        "main",
        tag("h1", "POET: the API"),
        tag("p", "The same for programs: ", tag("a", "openapi.json", href="/api/openapi.json")),
        *operations,
        tag("h2", "Values"),
        *values,
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', main), lang='en')}\n"


def _operation(method: str, path: str, about: dict[str, Any]) -> Markup:
    told = [tag("p", about["summary"])]
    if "requestBody" in about:
        media = about["requestBody"]["content"]["application/json"]
        told.append(tag("p", "Send: ", _type(media["schema"])))
    given = [
        tag("li", f"{each['name']} ({each['in']}): {each.get('description', '')}")
        for each in about.get("parameters", ())
    ]
    answers = [
        tag("li", f"{status}: {each['description']} ", _content(each.get("content", {})))
        for status, each in about["responses"].items()
    ]
    lists = [tag("ul", *given)] if given else []
    return tag("section", tag("h2", f"{method.upper()} {path}"), *told, *lists, tag("ul", *answers))


def _content(content: dict[str, Any]) -> Markup:
    return join(*(
        _type(each["schema"]) if "$ref" in each["schema"] else tag("span", media)
        for media, each in content.items()
    ))  # fmt: skip


def _value(name: str, about: dict[str, Any]) -> Markup:
    fields = [
        tag("li", f"{field}: ", _type(each), " ", each.get("description", ""))
        for field, each in about.get("properties", {}).items()
    ]
    return tag("section", tag("h3", name, id=name), tag("p", about.get("description", "")),
               tag("ul", *fields))  # fmt: skip


def _type(schema: dict[str, Any]) -> Markup:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return tag("a", name, href=f"#{name}")
    if "anyOf" in schema:
        first, *others = (_type(each) for each in schema["anyOf"])
        return join(first, *(join(" or ", each) for each in others))
    if "enum" in schema:
        return tag("span", " | ".join(map(str, schema["enum"])))
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        return join("list of ", _type(schema["items"]))
    return tag("span", str(schema.get("const", schema.get("type", "any"))))
