//! The frame of each page.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The marker for a part that is sent later. Contents are escaped, so they cannot contain it.
const LATER: PreEscaped<&str> = PreEscaped("<!--later-->");

/// The style sheet of all pages. It has a URL of its own, because the policy of pages forbids inline styles.
pub(crate) const STYLE: &str = "\
:root{--back:#fff;--text:#1d2127;--line:#d5dae1;--soft:#f3f6fa;--link:#0b5cad;--bad:#b3261e}\
@media(prefers-color-scheme:dark){:root{--back:#16181c;--text:#e2e4e8;--line:#3a3f47;--soft:#22262d;--link:#7ab7f5;\
--bad:#ff8a80}}\
body{font:15px/1.4 system-ui,sans-serif;margin:0;background:var(--back);color:var(--text)}\
a{color:var(--link)}a:focus-visible,input:focus-visible,button:focus-visible,summary:focus-visible{outline:3px solid \
var(--link);outline-offset:2px}\
nav{display:flex;flex-wrap:wrap;gap:.2em 1.2em;padding:.7em 1.5em;background:var(--soft);border-bottom:1px solid \
var(--line)}\
nav a[aria-current]{font-weight:600;text-decoration:none}\
main{padding:0 1.5em 2em}h1{font-size:1.4em}h2{font-size:1.1em;margin-top:1.8em}\
.skip{position:absolute;left:-99em}.skip:focus{position:static}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25em .9em .25em 0;vertical-align:top;\
border-bottom:1px solid var(--line)}\
tr:hover td{background:var(--soft)}\
.bad{color:var(--bad)}.counts{display:flex;flex-wrap:wrap;gap:1em;padding:0;list-style:none}\
.counts li{border:1px solid var(--line);border-radius:6px;padding:.5em 1em}.counts b{display:block;font-size:1.5em}\
pre{background:var(--soft);padding:.8em;overflow:auto;max-height:75vh}\
svg{width:100%;max-width:50em;height:9em;background:var(--soft)}polyline{fill:none;stroke:var(--link);stroke-width:1.5;\
vector-effect:non-scaling-stroke}\
.waiting:not(:last-child){display:none}";

/// The entries of the navigation: title, path and access key.
const ENTRIES: [(&str, &str, &str); 9] = [
    ("Overview", "/", "o"),
    ("Nodes", "/list/core/v1/nodes", "n"),
    ("Pods", "/list/core/v1/pods", "p"),
    ("Deployments", "/list/apps/v1/deployments", "d"),
    ("Services", "/list/core/v1/services", "s"),
    ("Events", "/list/core/v1/events", "e"),
    ("All kinds", "/kinds", "k"),
    ("Timeline", "/timeline", "t"),
    ("Measurements", "/measurements", "m"),
];

/// Puts the content of a page into the frame with the navigation. `path` is the page's own.
pub(crate) fn page(title: &str, path: &str, has_login: bool, content: &Markup) -> Markup {
    let inside = html! {
        a.skip href="#main" { "Skip to the content" }
        nav aria-label="Pages" {
            @for (name, target, key) in ENTRIES {
                a href=(target) accesskey=(key) aria-current=[(path == target).then_some("page")] { (name) }
            }
            @if has_login {
                form method="post" action="/logout" { button { "Log out" } }
            }
        }
        main id="main" {
            h1 { (title) }
            (content)
        }
    };
    document(title, &inside)
}

/// Returns the text `waiting` and the marker of a part that replaces it later. It must be the end of the content.
pub(crate) fn later(waiting: &str) -> Markup {
    html! { section { p.waiting { (waiting) } (LATER) } }
}

/// Splits a page at the part that is sent later.
pub(crate) fn split(page: Markup) -> (String, String) {
    let text = page.into_string();
    let (head, tail) = text.split_once(LATER.0).unwrap_or((&text, ""));
    (head.to_owned(), tail.to_owned())
}

/// Returns a page without the navigation.
pub(crate) fn frame(title: &str, content: &Markup) -> Markup {
    document(title, &html! { main { h1 { (title) } (content) } })
}

fn document(title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { (title) " - Windlass" }
                link rel="stylesheet" href="/style.css";
            }
            body { (body) }
        }
    }
}

/// Returns the message of a part that cannot be shown.
pub(crate) fn failure(message: &str) -> Markup {
    html! { p.bad role="alert" { (message) } }
}
