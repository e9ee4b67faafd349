//! Replaces `import` by files and snippets, and environment variables by their values.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::directive::{CorefileError, Directive, directives};

/// The number of import statements, as in CoreDNS.
const MAX_IMPORTS: usize = 10_000;
/// The depth of imports in imports; deeper ones import themselves.
const MAX_DEPTH: usize = 32;
/// The number of lines after all imports.
const MAX_LINES: usize = 200_000;
/// The size of an imported file.
const MAX_FILE: u64 = 16 << 20;

/// Returns the server blocks of a Corefile after imports. Files are relative to `folder`, and left out without one.
/// `variable` returns the value of an environment variable.
pub(super) fn expand(
    text: &str,
    folder: Option<&Path>,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Directive>, CorefileError> {
    let mut import = Import { folder, variable, snippets: HashMap::new(), imports: 0, lines: 0 };
    import.expand(directives(text, None)?, 0)
}

struct Import<'a> {
    folder: Option<&'a Path>,
    variable: &'a dyn Fn(&str) -> Option<String>,
    snippets: HashMap<String, Vec<Directive>>,
    imports: usize,
    lines: usize,
}

impl Import<'_> {
    fn expand(
        &mut self,
        lines: Vec<Directive>,
        depth: usize,
    ) -> Result<Vec<Directive>, CorefileError> {
        let mut expanded = Vec::new();
        for mut line in lines {
            self.lines += 1;
            if self.lines > MAX_LINES {
                return line.fail(format!(
                    "the Corefile has more than {MAX_LINES} lines after its imports"
                ));
            }
            if let Some(name) = snippet_name(&line) {
                self.snippets.insert(name.to_owned(), line.body);
                continue;
            }
            line.words.iter_mut().for_each(|word| replace_variables(word, self.variable));
            if line.name() == "import" {
                expanded.extend(self.import(&line, depth)?);
                continue;
            }
            line.body = self.expand(std::mem::take(&mut line.body), depth)?;
            expanded.push(line);
        }
        Ok(expanded)
    }

    fn import(&mut self, line: &Directive, depth: usize) -> Result<Vec<Directive>, CorefileError> {
        line.limit(1, false)?;
        let Some(pattern) = line.arguments().first() else {
            return line.fail("it needs a file or snippet");
        };
        self.imports += 1;
        if self.imports > MAX_IMPORTS || depth >= MAX_DEPTH {
            return line.fail("there are too many imports; does a file or snippet import itself?");
        }
        if let Some(snippet) = self.snippets.get(pattern) {
            let snippet = snippet.clone();
            return self.expand(snippet, depth + 1);
        }
        let mut expanded = Vec::new();
        let Some(folder) = self.folder else { return Ok(expanded) };
        for path in files(folder, line, pattern)? {
            let file: Arc<Path> = path.as_path().into();
            let read = || match std::fs::metadata(&path)?.len() {
                length if length > MAX_FILE => {
                    Err(std::io::Error::other(format!("it has {length} bytes")))
                }
                _ => std::fs::read_to_string(&path),
            };
            let text = read()
                .or_else(|error| line.fail(format!("reading {}: {error}", path.display())))?;
            expanded.extend(self.expand(directives(&text, Some(file))?, depth + 1)?);
        }
        Ok(expanded)
    }
}

/// Returns the file of this name, or the files that match a pattern with `*` in the last part of its path.
fn files(folder: &Path, line: &Directive, pattern: &str) -> Result<Vec<PathBuf>, CorefileError> {
    let path = folder.join(pattern);
    let (folder, name) =
        (path.parent().unwrap_or(folder), path.file_name().and_then(|name| name.to_str()));
    if folder.to_string_lossy().contains(['*', '?', '[']) || pattern.contains(['?', '[']) {
        return line.fail("a pattern has * in the last part of its path, and no other wildcard");
    }
    let Some(name) = name.filter(|name| name.contains('*')) else { return Ok(vec![path]) };
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(Vec::new()) };
    let files = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file());
    let is_match = |path: &PathBuf| {
        // As the shell does, a pattern does not name hidden files.
        path.file_name()
            .and_then(|file| file.to_str())
            .is_some_and(|file| matches(name, file) && !file.starts_with('.'))
    };
    let mut files: Vec<PathBuf> = files.filter(is_match).collect();
    files.sort();
    Ok(files)
}

/// Reports whether a file's name matches a pattern, in which each `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let parts: Vec<&str> = pattern.split('*').collect();
    let [first, middle @ .., last] = parts.as_slice() else { return pattern == name };
    let inner = name.strip_prefix(first).and_then(|rest| rest.strip_suffix(last));
    let Some(mut inner) = inner else { return false };
    middle.iter().all(|part| match inner.split_once(part) {
        Some((_, rest)) => {
            inner = rest;
            true
        }
        None => false,
    })
}

/// Returns the name of a snippet if the line defines one: `(name) {`.
fn snippet_name(line: &Directive) -> Option<&str> {
    match line.words.as_slice() {
        [word] if !line.body.is_empty() => word.strip_prefix('(')?.strip_suffix(')'),
        _ => None,
    }
}

/// Replaces `{$NAME}` and `{%NAME%}` by the variable's value, which is empty if the variable is not set.
fn replace_variables(word: &mut String, variable: &dyn Fn(&str) -> Option<String>) {
    for (open, close) in [("{$", "}"), ("{%", "%}")] {
        if !word.contains(open) {
            continue;
        }
        let (mut replaced, mut rest) = (String::new(), word.as_str());
        while let Some((before, after)) = rest.split_once(open) {
            let Some((name, end)) = after.split_once(close) else { break };
            replaced.push_str(before);
            replaced.push_str(&variable(name).unwrap_or_default());
            rest = end;
        }
        replaced.push_str(rest);
        *word = replaced;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> Option<String> {
        (name == "SERVER").then(|| "192.0.2.9".to_owned())
    }

    fn words(lines: &[Directive]) -> Vec<String> {
        lines
            .iter()
            .map(|line| format!("{}[{}]", line.words.join(" "), words(&line.body).join(",")))
            .collect()
    }

    #[test]
    fn expands_snippets_files_and_variables() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("common.conf"), "errors\nlog\n").unwrap();
        std::fs::create_dir(folder.path().join("zones")).unwrap();
        std::fs::write(folder.path().join("zones/b.conf"), "b.example {\n whoami\n}\n").unwrap();
        std::fs::write(folder.path().join("zones/a.conf"), "a.example {\n import shared\n}\n")
            .unwrap();
        std::fs::write(folder.path().join("zones/.hidden.conf"), "}").unwrap();
        let text = "(shared) {\n forward . {$SERVER}:{%SERVER%}{$NONE}\n}\nimport zones/*.conf\n. {\n import common.conf\n \
                    import shared\n}\nimport none/*\n";
        let lines = expand(text, Some(folder.path()), &variable).unwrap();
        let forward = "forward . 192.0.2.9:192.0.2.9[]";
        assert_eq!(
            words(&lines),
            [
                format!("a.example[{forward}]"),
                "b.example[whoami[]]".to_owned(),
                format!(".[errors[],log[],{forward}]")
            ]
        );
    }

    #[test]
    fn rejects_missing_endless_and_exploding_imports() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("self"), "import self\n").unwrap();
        std::fs::write(folder.path().join("bad"), "\n}\n").unwrap();
        let mut bomb = "(a0) {\n x\n}\n".to_owned();
        for n in 1..30 {
            bomb += &format!("(a{n}) {{\n import a{0}\n import a{0}\n}}\n", n - 1);
        }
        bomb += "import a29\n";
        for (text, reason) in [
            ("\nimport none", "Corefile line 2: import: reading"),
            ("import self", "self line 1: import: there are too many imports"),
            ("(a) {\n import a\n}\nimport a", "too many imports"),
            (&bomb, "too many imports"),
            ("import bad", "bad line 2: this brace"),
            ("import a?", "no other wildcard"),
            ("import a b", "\"b\" is not supported"),
        ] {
            let error = expand(text, Some(folder.path()), &variable).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn matches_patterns_of_file_names() {
        for (pattern, name, expected) in [
            ("*", "a", true),
            ("*.conf", "a.conf", true),
            ("*.conf", "conf", false),
            ("a*b*c", "aXbYc", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
