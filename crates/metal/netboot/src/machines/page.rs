//! Renders the HTML pages of all machines and of one machine, without scripts.

use std::fmt::Write;

use super::{
    registry::{Entry, Machine},
    stage::{Outcome, Stage},
    status::{boot_duration, format_age, format_duration, format_stage, sort},
};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2733;--dim:#66778a;--line:#d9e0e7;--paper:#f7f9fb;--card:#fff;\
--good:#1a7f4b;--bad:#c0352b;--busy:#1f6fb2}\
@media(prefers-color-scheme:dark){:root{--ink:#e4ebf2;--dim:#92a3b5;--line:#2c3a48;--paper:#10171e;--card:#18222c;\
--good:#4cc38a;--bad:#ff7b6e;--busy:#6db4f0}}\
*{box-sizing:border-box}body{margin:0;padding:2rem;background:var(--paper);color:var(--ink);\
font:15px/1.45 system-ui,sans-serif}main{max-width:82rem;margin:auto}\
h1{font-size:1.35rem;margin:0 0 .2rem}p{margin:.2rem 0 1.2rem;color:var(--dim)}a{color:var(--busy);text-decoration:none}\
a:hover{text-decoration:underline}table{width:100%;border-collapse:collapse;background:var(--card);\
border:1px solid var(--line);border-radius:6px}th,td{text-align:left;padding:.45rem .7rem;\
border-bottom:1px solid var(--line);vertical-align:top}th{font-size:.8rem;color:var(--dim);font-weight:600}\
tr:last-child td{border-bottom:0}td.n{text-align:right;white-space:nowrap}code{font:13px ui-monospace,monospace}\
.good{color:var(--good)}.bad{color:var(--bad)}.busy{color:var(--busy)}\
.bar{position:relative;height:1.1rem;min-width:24rem}h1 code{font-size:1em}.bar i{position:absolute;top:.2rem;height:.7rem;border-radius:2px;\
background:currentColor;min-width:3px}pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;font:13px ui-monospace,monospace}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;margin:0 0 1.4rem}dt{color:var(--dim)}dd{margin:0}\
@media(max-width:50rem){body{padding:1rem .6rem}table,tbody,tr,td{display:block}table{border:0;background:none}\
tr{background:var(--card);border:1px solid var(--line);border-radius:6px;margin:0 0 .7rem;padding:.3rem 0}\
tr:has(th){display:none}td,td.n{border:0;padding:.1rem .7rem;text-align:left}td:empty{display:none}\
td[title]::before{content:attr(title) \": \";color:var(--dim)}.bar{min-width:0}}";

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
    }
    out
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"2\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head>\
         <body><main>{body}</main></body></html>\n",
        title = escape(title)
    )
}

fn class(machine: &Machine) -> &'static str {
    match machine.last() {
        Some(entry) if entry.outcome == Outcome::Failed => "bad",
        Some(entry) if entry.stage >= Stage::Installed => "good",
        _ => "busy",
    }
}

fn colour(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Started => "busy",
        Outcome::Succeeded => "good",
        Outcome::Failed => "bad",
    }
}

/// The maximum number of rows of the page, which browsers reload every few seconds. The JSON has all machines.
const ROWS: usize = 1000;

/// Renders the page of all machines: failed ones first, then by the time of the last contact.
pub fn all(machines: &[Machine], now: u64) -> String {
    let mut machines: Vec<&Machine> = machines.iter().collect();
    sort(&mut machines);
    let count = |kind: &str| machines.iter().filter(|m| class(m) == kind).count();
    let mut body = format!(
        "<h1>Machines</h1><p>{} known · <span class=\"good\">{} there</span> · \
         <span class=\"busy\">{} on the way</span> · <span class=\"bad\">{} failed</span></p>",
        machines.len(),
        count("good"),
        count("busy"),
        count("bad")
    );
    if machines.is_empty() {
        body.push_str("<p>No machine has booted from here yet.</p>");
        return page("Machines", &body);
    }
    body.push_str(
        "<table><tr><th>machine<th>name<th>address<th>group<th>stage<th>seen<th>boot took<th>last error</tr>",
    );
    let more = machines.len().saturating_sub(ROWS);
    for machine in machines.into_iter().take(ROWS) {
        let text = |value: &Option<String>| escape(value.as_deref().unwrap_or("–"));
        let address = machine.address.map(|address| address.to_string());
        let failure = machine.failure.as_ref().map_or(String::new(), |failure| {
            format!(
                "<span class=\"bad\">{}</span>, {}<pre>{}</pre>",
                failure.stage.title(),
                format_age(failure.at, now),
                escape(&failure.text)
            )
        });
        // Writing to a String cannot fail.
        let _ = write!(
            body,
            "<tr><td><a href=\"/machines/{link}\"><code>{id}</code></a><td title=\"name\">{name}<td title=\"address\">{address}\
             <td title=\"group\">{group}<td title=\"stage\" class=\"{class}\">{stage}<td title=\"seen\" class=\"n\">{seen}\
             <td title=\"boot took\" class=\"n\">{took}<td>{failure}</tr>",
            link = link(&machine.id),
            id = escape(&machine.id),
            name = text(&machine.hostname),
            address = text(&address),
            group = text(&machine.group),
            class = class(machine),
            stage = format_stage(machine),
            seen = format_age(machine.seen, now),
            took = format_duration(boot_duration(machine)),
        );
    }
    body.push_str("</table>");
    if more > 0 {
        let _ = write!(body, "<p>and {more} more, <a href=\"/machines.json\">as JSON</a></p>");
    }
    page("Machines", &body)
}

/// Percent-encodes an id for a URL path.
fn link(id: &str) -> String {
    api_meta::percent_encode(id, b"-_.:")
}

/// Renders one machine with the timeline of its last boot.
pub fn one(machine: &Machine, now: u64) -> String {
    let mut body = format!(
        "<p><a href=\"/machines\">Machines</a></p><h1><code>{}</code></h1><p class=\"{}\">{}</p><dl>",
        escape(&machine.id),
        class(machine),
        format_stage(machine)
    );
    let installed = machine.installed.map(|at| format_age(at, now));
    let address = machine.address.map(|address| address.to_string());
    let boots = Some(machine.boots.to_string());
    for (name, value) in [
        ("name", &machine.hostname),
        ("address", &address),
        ("group", &machine.group),
        ("profile", &machine.profile),
        ("UUID", &machine.uuid),
        ("serial", &machine.serial),
        ("architecture", &machine.arch),
        ("network boots", &boots),
        ("installed", &installed),
    ] {
        if let Some(value) = value {
            let _ = write!(body, "<dt>{name}<dd>{}", escape(value));
        }
    }
    body.push_str("</dl>");
    if let Some(failure) = &machine.failure {
        let _ = write!(
            body,
            "<p class=\"bad\">{} failed {}</p><pre>{}</pre><p></p>",
            failure.stage.title(),
            format_age(failure.at, now),
            escape(&failure.text)
        );
    }
    body.push_str(&chart(&machine.timeline));
    page(&machine.id, &body)
}

/// Renders the timeline, each entry with a bar from its start to that of the next.
fn chart(timeline: &[Entry]) -> String {
    let (Some(first), Some(last)) = (timeline.first(), timeline.last()) else {
        return String::new();
    };
    let whole = (last.at - first.at).max(1) as f64;
    let mut out = "<table><tr><th>after<th>stage<th>took<th><th></tr>".to_owned();
    for (i, entry) in timeline.iter().enumerate() {
        let end = timeline.get(i + 1).map_or(last.at, |next| next.at);
        let (from, to) = (entry.at - first.at, end.saturating_sub(first.at));
        let percent = |time: u64| time as f64 * 100.0 / whole;
        let took = if end > entry.at { format_duration(end - entry.at) } else { String::new() };
        let _ = write!(
            out,
            "<tr><td title=\"after\" class=\"n\">{after}<td class=\"{colour}\">{stage}{outcome}\
             <td title=\"took\" class=\"n\">{took}\
             <td class=\"{colour}\"><div class=\"bar\"><i style=\"left:{left:.2}%;width:{width:.2}%\"></i></div>\
             <td><pre>{detail}</pre></tr>",
            after = format_duration(from),
            colour = colour(entry.outcome),
            stage = entry.stage.title(),
            outcome = match entry.outcome {
                Outcome::Started => " …",
                Outcome::Succeeded => "",
                Outcome::Failed => " failed",
            },
            left = percent(from),
            width = percent(to.saturating_sub(from)),
            detail = escape(&entry.detail)
        );
    }
    out + "</table>"
}
