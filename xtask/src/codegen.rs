//! `cargo xtask codegen --import DIR`: regenerates the facts of `crates/api/api-schema` from upstream's published data.
//!
//! DIR contains upstream's OpenAPI (`openapi/v3/*.json`, `openapi/swagger.json`), the protobuf field numbers
//! (`proto-fields.tsv`), the discovery documents of a running server (`golden/apiserver`), and those of a server with
//! all versions (`discovery`). The facts are names, numbers and flags in a text format with readable diffs. No code is
//! generated from them, because `api-schema` parses them faster than a process starts. `--go DIR` (upstream's
//! `types.go` files by import path) also regenerates the presence facts, because OpenAPI does not distinguish pointers
//! from values. `--check` writes nothing and reports differences as errors.

use std::path::PathBuf;

use crate::{
    error::{Result, fail},
    file::{read, write},
    run::workspace_root,
};

mod gotypes;
mod proto;
mod resources;
mod types;

const USAGE: &str = "usage: cargo xtask codegen --import DIR [--go DIR] [--out DIR] [--check]";

/// The directory of the facts, relative to the workspace.
const FACTS: &str = "crates/api/api-schema/facts";

pub(crate) fn run(args: &[String]) -> Result<()> {
    let (mut import, mut go, mut out, mut check) = (None, None, None, false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || {
            args.next().map(PathBuf::from).ok_or_else(|| format!("{arg} needs a value; {USAGE}"))
        };
        match arg.as_str() {
            "--import" => import = Some(value()?),
            "--go" => go = Some(value()?),
            "--out" => out = Some(value()?),
            "--check" => check = true,
            _ => return fail(format!("unknown argument {arg}; {USAGE}")),
        }
    }
    let import = import.ok_or(USAGE)?;
    let out = out.unwrap_or_else(|| workspace_root().join(FACTS));
    let types = types::facts(&import)?;
    let presence = go.map(|go| gotypes::facts(&go, &types)).transpose()?;
    let mut facts = vec![
        ("types.tsv", types),
        ("resources.tsv", resources::facts(&import)?),
        ("on-demand.tsv", resources::on_demand(&import)?),
    ];
    facts.extend(presence.map(|text| ("presence.tsv", text)));
    for (name, text) in facts {
        let path = out.join(name);
        if check {
            let old = read(&path)?;
            if old != text {
                return fail(format!(
                    "{} differs from {}; run `cargo xtask codegen --import {}`",
                    path.display(),
                    import.display(),
                    import.display()
                ));
            }
        } else {
            write(&path, &text)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The committed facts match upstream's data, if that is available beside the workspace.
    #[test]
    fn matches_committed_facts() {
        let root = workspace_root();
        let Some(import) =
            root.ancestors().map(|dir| dir.join("shared/reference")).find(|dir| dir.is_dir())
        else {
            return;
        };
        run(&["--import".into(), import.to_string_lossy().into_owned(), "--check".into()]).unwrap();
    }
}
