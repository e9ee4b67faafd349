//! The timeline as an HTML page.

use std::fmt::Write;

use super::{
    runs::{duration_text, runs},
    step::{Outcome, Step},
};

const STYLE: &str = "body{font:14px system-ui,sans-serif;margin:2em;background:#fff;color:#222}\
table{border-collapse:collapse;width:100%}td{padding:2px 8px;vertical-align:top}\
tr:hover{background:#f3f6fa}td.bar{width:55%;position:relative}\
td.bar div{position:absolute;height:14px;min-width:2px;border-radius:2px;background:#3b82c4;top:4px}\
tr.failed td.bar div{background:#c43b3b}tr.skipped td.bar div{background:#b5b5b5}\
td.time{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}\
summary{cursor:pointer}ul{margin:.3em 0}code{font-size:12px}\
@media(prefers-color-scheme:dark){body{background:#16181c;color:#ddd}tr:hover{background:#22262d}}";

/// Renders the steps as a self-contained page, without scripts, links and fonts.
pub fn html(steps: &[Step]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Bootstrap timeline</title>\
         <style>{STYLE}</style></head>\n<body><h1>Bootstrap timeline</h1>\n"
    );
    for (title, run) in runs(steps) {
        let first = run.iter().map(|s| s.start).min().unwrap_or(0);
        let span = run.iter().map(Step::end).max().unwrap_or(first).saturating_sub(first).max(1);
        let _ = writeln!(out, "<p>{title}</p>\n<table>");
        for step in run {
            row(&mut out, step, first, span);
        }
        out.push_str("</table>\n");
    }
    out.push_str("</body></html>\n");
    out
}

fn row(out: &mut String, step: &Step, first: u64, span: u64) {
    let class = match step.outcome {
        Outcome::Done => "done",
        Outcome::Skipped(_) => "skipped",
        Outcome::Failed(_) => "failed",
    };
    let percent = |micros: u64| micros as f64 * 100.0 / span as f64;
    let _ = writeln!(
        out,
        "<tr class=\"{class}\"><td>{}</td><td>{}</td><td class=\"bar\">\
         <div style=\"left:{:.3}%;width:{:.3}%\"></div></td>\
         <td class=\"time\">+{}</td><td class=\"time\">{}</td></tr>",
        escape(&step.component),
        details(step),
        percent(step.start - first),
        percent(step.duration),
        duration_text(step.start - first),
        duration_text(step.duration),
    );
}

/// Renders the step's name, which expands to its details.
fn details(step: &Step) -> String {
    let mut items = String::new();
    let mut item = |name: &str, text: &str| {
        let _ = write!(items, "<li>{name} <code>{}</code></li>", escape(text));
    };
    match &step.outcome {
        Outcome::Done => {}
        Outcome::Skipped(why) => item("skipped:", why),
        Outcome::Failed(cause) => item("failed:", cause),
    }
    step.waited_for.iter().for_each(|what| item("waited for", what));
    step.read.iter().for_each(|path| item("read", &path.to_string_lossy()));
    step.written.iter().for_each(|path| item("wrote", &path.to_string_lossy()));
    let name = escape(&step.step);
    if items.is_empty() {
        return name;
    }
    let open = if matches!(step.outcome, Outcome::Failed(_)) { " open" } else { "" };
    format!("<details{open}><summary>{name}</summary><ul>{items}</ul></details>")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
