//! Fuzz tests with damaged templates, which must end within their limits.

use serde_json::json;

use crate::{
    options::{Limits, MissingKey},
    template::Template,
};

#[test]
fn executes_templates_within_limits() {
    let data = json!({"s": "text", "n": 1.5, "list": [1, "two", null], "map": {"a": {"b": true}}});
    let seeds: [&[u8]; 4] = [
        b"{{- /* c */ -}}\n{{range $i, $x := .list}}{{if eq $i 1}}{{continue}}{{else}}{{$x | printf \"%q %5.2f\" .}}{{end}}{{end}}",
        b"{{define \"t\"}}{{.a.b | not}}{{end}}{{template \"t\" .map}}{{block \"u\" .}}{{len .list}}{{end}}{{index .map \"a\" \"b\"}}",
        b"{{with $y := slice .s 1 3}}{{$y = html $y}}{{js $y | urlquery}}{{else with .n}}{{break}}{{end}}{{range 3}}{{.}}{{end}}",
        b"{{and 1 (or 0 .s) | printf \"%[2]*[1]d %-#x\" 0x1F 1e3 'a' `raw`}}{{lt 1 2}}{{call .s}}",
    ];
    let limits = Limits { steps: 20_000, output: 50_000, depth: 50 };
    fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "template", &seeds, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let Ok(template) = Template::parse("t", text) else { return };
        if let Ok(out) = template.limits(limits).missing_key(MissingKey::Error).execute(&data) {
            assert!(out.len() <= limits.output);
        }
    });
}
