//! Reads the shell examples of the book in `docs/`, so that tests run them as they are printed.

use std::{fs, path::Path};

use crate::{machines::Host, process::Output, programs::tool};

/// Runs the `console` blocks of a page on a machine, as one shell script that ends at the first failure. Only blocks
/// below these headings count, and lines without a prompt are output. `before` runs first. `windlass` and kubectl are
/// on the path, and the home directory is new.
#[track_caller]
pub fn run_examples(host: &Host<'_>, page: &str, before: &str, headings: &[&str]) -> Output {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs").join(page);
    let text =
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("reading {}: {e}", path.display()));
    let mut script = format!(
        "set -eux\nexport HOME=\"$(dirname \"$0\")/home\"\nmkdir -p ~/bin\nln -s {} ~/bin/windlass\n\
         ln -s {} ~/bin/kubectl\nexport PATH=~/bin:$PATH\ncd\n{before}\n",
        host.binary(),
        tool("kubectl"),
    );
    for heading in headings {
        let commands = section(&text, heading).map(commands).unwrap_or_default();
        assert!(!commands.is_empty(), "no example below {heading:?} in {}", path.display());
        script.push_str(&commands);
    }
    let script = host.write("examples.sh", &script);
    host.run("bash", &[&script])
}

/// Returns the text between a heading and the next heading of the same level.
fn section<'t>(text: &'t str, heading: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("\n## {heading}\n"))?;
    Some(rest.split("\n## ").next().unwrap_or(rest))
}

/// Returns the commands of the `console` blocks: lines behind a prompt, with the lines that continue them.
fn commands(text: &str) -> String {
    let blocks = text.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut commands = String::new();
    let mut continues = false;
    for line in blocks.flat_map(str::lines) {
        let command = line.strip_prefix("$ ").or(continues.then_some(line));
        continues = command.is_some_and(|command| command.ends_with('\\'));
        commands.extend(command.map(|command| format!("{command}\n")));
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_commands_with_their_continuations() {
        let text = "# Page\n\n## One\n\n```console\n$ a \\\n    b\noutput\n$ c\n```\n\n```text\n$ no\n```\n\n## Two\n";
        assert_eq!(section(text, "One").map(commands).as_deref(), Some("a \\\n    b\nc\n"));
        assert_eq!(section(text, "Three"), None);
    }
}
