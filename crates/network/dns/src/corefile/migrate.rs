//! Replaces what CoreDNS has removed from Corefiles, as the notes of its releases describe. All other lines stay as
//! they are, comments included.

use std::collections::BTreeMap;

use crate::directive::{Line, lines};

/// A migrated Corefile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migration {
    /// The new text, which may be the former one.
    pub text: String,
    /// The changes, each with its line in the former text.
    pub notices: Vec<String>,
}

/// Migrates a Corefile. A text that cannot be parsed stays as it is.
pub fn migrate(text: &str) -> Migration {
    let unchanged = || Migration { text: text.to_owned(), notices: Vec::new() };
    let Ok(parsed) = lines(text) else { return unchanged() };
    let mut walk = Walk { texts: text.lines().collect(), ..Walk::default() };
    for line in &parsed {
        if walk.line(line).is_none() {
            return unchanged();
        }
    }
    if walk.edits.is_empty() || !walk.open.is_empty() { unchanged() } else { walk.finish() }
}

/// An open block.
#[derive(Default)]
struct Block {
    name: String,
    line: usize,
    /// The zones in the block's line, for the plugin `transfer`.
    zones: Vec<String>,
    /// The receivers of zone transfers, from the block's options.
    receivers: Vec<String>,
    is_removed: bool,
}

#[derive(Default)]
struct Walk<'a> {
    texts: Vec<&'a str>,
    open: Vec<Block>,
    /// The new texts of lines, by their numbers. Empty for a line that is removed.
    edits: BTreeMap<usize, Vec<String>>,
    notices: Vec<String>,
}

impl Walk<'_> {
    /// Migrates a line. Returns `None` if it closes a block that no line opens.
    fn line(&mut self, line: &Line) -> Option<()> {
        let words: Vec<&str> = line.words.iter().map(|word| word.text.as_str()).collect();
        if line.closes() {
            let block = self.open.pop()?;
            self.close(&block, line.number);
            return Some(());
        }
        let is_removed = self.open.iter().any(|block| block.is_removed);
        let removes = !is_removed && self.migrate(line.number, &words);
        if line.opens() {
            let (name, arguments) = words.split_first().map_or(("", &[][..]), |(n, a)| (*n, a));
            let zones =
                arguments.iter().filter(|word| **word != "{").skip(usize::from(name == "file"));
            self.open.push(Block {
                name: name.to_owned(),
                line: line.number,
                zones: zones.map(|zone| (*zone).to_owned()).collect(),
                receivers: Vec::new(),
                is_removed: removes,
            });
        }
        Some(())
    }

    /// Changes one line. Returns `true` if the directive is removed with its block.
    fn migrate(&mut self, number: usize, words: &[&str]) -> bool {
        // The rest of a word that spans lines would stay.
        if words.iter().any(|word| word.contains('\n')) {
            return false;
        }
        let depth = self.open.len();
        let parent = self.open.last().map_or("", |block| block.name.as_str()).to_owned();
        match (depth, parent.as_str(), words) {
            (1, _, ["proxy", ..]) => {
                let text = self.text(number).replacen("proxy", "forward", 1);
                self.edit(
                    number,
                    vec![text],
                    r#"plugin "proxy" is removed in 1.5.0; it is replaced by "forward""#,
                );
            }
            (1, _, ["federation", ..]) => {
                self.edit(number, Vec::new(), r#"plugin "federation" is removed in 1.7.0"#);
                return true;
            }
            (2, "proxy", ["protocol", "dns", "force_tcp"] | ["protocol", "force_tcp", ..]) => {
                let text = format!("{}force_tcp", self.indentation(number));
                let notice = r#"option "protocol" in plugin "proxy" is replaced by "force_tcp" of "forward""#;
                self.edit(number, vec![text], notice);
            }
            (
                2,
                "proxy",
                [
                    option @ ("fail_timeout" | "max_fails" | "health_check" | "spray" | "protocol"),
                    ..,
                ],
            ) => {
                self.edit(
                    number,
                    Vec::new(),
                    &format!("option {option:?} in plugin \"proxy\" is removed in 1.5.0"),
                );
            }
            (2, "kubernetes", ["resyncperiod", ..]) => {
                self.edit(
                    number,
                    Vec::new(),
                    r#"option "resyncperiod" in plugin "kubernetes" is removed in 1.6.0"#,
                );
            }
            (2, "kubernetes", ["upstream", ..]) => {
                self.edit(
                    number,
                    Vec::new(),
                    r#"option "upstream" in plugin "kubernetes" is removed in 1.7.0"#,
                );
            }
            (2, "kubernetes", ["endpoint", first, _, ..]) => {
                let text = format!("{}endpoint {first}", self.indentation(number));
                let notice =
                    r#"option "endpoint" in plugin "kubernetes" has one server; the first is kept"#;
                self.edit(number, vec![text], notice);
            }
            (2, "kubernetes" | "file", ["transfer", "to", receivers @ ..]) => {
                let moved: Vec<String> = receivers.iter().map(|word| (*word).to_owned()).collect();
                if let Some(block) = self.open.last_mut() {
                    block.receivers.extend(moved);
                }
                let notice = format!(
                    "option \"transfer\" in plugin {parent:?} is removed in 1.8.0, replaced by plugin \"transfer\""
                );
                self.edit(number, Vec::new(), &notice);
            }
            _ => {}
        }
        false
    }

    /// Ends a block: removes all of its lines, or writes the plugin `transfer` after it.
    fn close(&mut self, block: &Block, number: usize) {
        if block.is_removed {
            self.edits.extend((block.line..=number).map(|line| (line, Vec::new())));
        }
        if block.receivers.is_empty() {
            return;
        }
        let indentation = self.indentation(number);
        let zones: String = block.zones.iter().map(|zone| format!(" {zone}")).collect();
        self.edits.insert(
            number,
            vec![
                self.text(number),
                format!("{indentation}transfer{zones} {{"),
                format!("{indentation}    to {}", block.receivers.join(" ")),
                format!("{indentation}}}"),
            ],
        );
    }

    fn edit(&mut self, number: usize, texts: Vec<String>, notice: &str) {
        self.edits.insert(number, texts);
        self.notices.push(format!("Corefile line {number}: {notice}"));
    }

    fn text(&self, number: usize) -> String {
        let text = number.checked_sub(1).and_then(|index| self.texts.get(index));
        text.copied().unwrap_or_default().to_owned()
    }

    fn indentation(&self, number: usize) -> String {
        self.text(number).chars().take_while(|next| next.is_whitespace()).collect()
    }

    fn finish(mut self) -> Migration {
        let mut text = String::new();
        for (index, old) in self.texts.iter().enumerate() {
            let new = self.edits.remove(&(index + 1)).unwrap_or_else(|| vec![(*old).to_owned()]);
            for line in new {
                text += &line;
                text.push('\n');
            }
        }
        Migration { text, notices: self.notices }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corefile::check;

    #[test]
    fn replaces_what_was_removed_and_keeps_the_rest() {
        let text = "\
# our names
.:53 {
    errors # to the log
    kubernetes cluster.local in-addr.arpa {
        upstream
        resyncperiod 5m
        endpoint https://192.0.2.1:6443 https://192.0.2.2:6443
        transfer to 192.0.2.9
        transfer to *
    }
    federation cluster.local {
        prod prod.example.com
    }
    proxy . 192.0.2.53 {
        except example.org
        policy random
        health_check 5s
        protocol dns force_tcp
    }
}
example.org {
    file /etc/zone example.org {
        transfer to *
    }
}
";
        let expected = "\
# our names
.:53 {
    errors # to the log
    kubernetes cluster.local in-addr.arpa {
        endpoint https://192.0.2.1:6443
    }
    transfer cluster.local in-addr.arpa {
        to 192.0.2.9 *
    }
    forward . 192.0.2.53 {
        except example.org
        policy random
        force_tcp
    }
}
example.org {
    file /etc/zone example.org {
    }
    transfer example.org {
        to *
    }
}
";
        let migration = migrate(text);
        assert_eq!(migration.text, expected);
        assert_eq!(migration.notices.len(), 10, "{:#?}", migration.notices);
        assert!(migration.notices[0].starts_with("Corefile line 5: option \"upstream\""));
        assert_eq!(check(expected), []);
        assert_eq!(migrate(expected).text, expected, "a migration of a migrated file");
    }

    #[test]
    fn leaves_other_texts_as_they_are() {
        let large = ".:53 {\n errors\n}\n".repeat(100_000);
        for text in [
            "",
            ".:53 {\n    errors\n}\n",
            ".:53 {\n kubernetes cluster.local {\n upstream\n",
            "}\n.:53 {\n proxy . 192.0.2.1\n}\n",
            ".:53 {\n proxy . \"192.0.2.1\n}\n",
            ".:53 {\n kubernetes cluster.local {\n upstream \"a\nb\"\n }\n}\n",
            // The same words with other meanings.
            "proxy {\n errors\n}\n",
            "upstream:53 {\n hosts {\n 192.0.2.1 federation\n }\n}\n",
            &large,
        ] {
            let migration = migrate(text);
            assert_eq!((migration.text.as_str(), migration.notices.len()), (text, 0));
        }
    }
}
