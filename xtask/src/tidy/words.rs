//! Rules for comments: each paragraph of a doc comment begins with a verb or a noun, and no line is too long.

use super::file::{File, before_tests, is_test};

/// Words that must not begin a paragraph of a doc comment. The subject of a sentence that begins with one of them comes
/// too late.
const OPENINGS: [&str; 15] = [
    "What", "Who", "Whom", "Whose", "Whoever", "Whatever", "Whether", "How", "Where", "Of", "One",
    "Such", "Nobody", "Somebody", "That",
];

/// The number of columns that a line may have.
const COLUMNS: usize = 120;

/// Files with texts of other formats: style sheets, units, boot scripts.
const TEXTS: [&str; 5] = [
    "crates/bootstrap/bootstrap-core/src/units.rs",
    "crates/metal/netboot/src/machines/page.rs",
    "crates/metal/netboot/src/matchbox/render.rs",
    "crates/metal/nodeimage/src/contents.rs",
    "xtask/src/blackbox.rs",
];

pub(super) fn problems(file: &File) -> Vec<String> {
    if file.path.extension().is_none_or(|end| end != "rs") {
        return Vec::new();
    }
    let path = file.path.display();
    let riddles = openings(&file.text).filter_map(|(number, opening)| {
        let word = opening.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        OPENINGS.contains(&word).then(|| {
            format!(
                "{path}:{number}: a doc comment begins with {word:?}; begin with a verb or a noun"
            )
        })
    });
    let has_texts = TEXTS.iter().any(|path| file.path.ends_with(path));
    let production =
        if has_texts || is_test(&file.path) { 0 } else { before_tests(&file.text).lines().count() };
    let long = file.text.lines().enumerate().filter_map(|(at, line)| {
        let is_comment = line.trim_start().starts_with("//");
        let is_held = is_comment || at < production && !is_unbreakable(line);
        let columns = line.chars().count();
        (is_held && columns > COLUMNS)
            .then(|| format!("{path}:{}: {columns} columns are more than {COLUMNS}", at + 1))
    });
    riddles.chain(long).collect()
}

/// Returns the first lines of the paragraphs of doc comments, with their numbers.
fn openings(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_within = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let line = line.trim_start();
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim);
        let is_first = !is_within;
        is_within = comment.is_some_and(|comment| !comment.is_empty());
        comment.filter(|_| is_first).map(|comment| (at + 1, comment))
    })
}

/// Reports whether a line holds text that cannot be broken: a raw string, or a macro that rustfmt joins again.
fn is_unbreakable(line: &str) -> bool {
    ["r#\"", "r\"", "json!("].iter().any(|text| line.contains(text))
}
