//! Writes HCL in upstream's layout: members sorted by name, adjacent values aligned in a column.

use std::collections::BTreeMap;

/// A value on one line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Expr {
    Text(String),
    /// A verbatim token: a reference, number or call. User input in it must have passed `labels`.
    Token(String),
    List(Vec<Expr>),
}

impl Expr {
    /// Returns a string.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Returns a list of strings.
    pub(crate) fn texts(texts: &[String]) -> Self {
        Self::List(texts.iter().map(Self::text).collect())
    }

    /// Returns a number.
    pub(crate) fn int(number: i64) -> Self {
        Self::Token(number.to_string())
    }

    /// Returns a boolean.
    pub(crate) fn flag(flag: bool) -> Self {
        Self::Token(flag.to_string())
    }

    /// Returns the value as HCL.
    pub(crate) fn render(&self) -> String {
        match self {
            Self::Text(text) => quoted(text),
            Self::Token(token) => token.clone(),
            Self::List(items) => {
                let items: Vec<_> = items.iter().map(Self::render).collect();
                format!("[{}]", items.join(", "))
            }
        }
    }
}

/// Quotes a string for HCL, so that it neither ends early nor starts a template.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '$' | '%' if rest.peek() == Some(&'{') => out.extend([c, c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A member of a block.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Value(Expr),
    /// A map. An empty one is omitted, but still separates columns.
    Map(BTreeMap<String, Expr>),
    Blocks(Vec<Block>),
}

/// The members of a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block(BTreeMap<String, Item>);

impl Block {
    /// Sets a member with a fixed name.
    pub(crate) fn set(&mut self, name: &str, item: Item) -> &mut Self {
        self.set_named(name.to_owned(), item)
    }

    /// Sets a member with a name that `labels` has checked.
    pub(crate) fn set_named(&mut self, name: String, item: Item) -> &mut Self {
        self.0.insert(name, item);
        self
    }

    /// Sets a value.
    pub(crate) fn value(&mut self, name: &str, value: Expr) -> &mut Self {
        self.set(name, Item::Value(value))
    }

    /// Sets a string.
    pub(crate) fn text(&mut self, name: &str, text: &str) -> &mut Self {
        self.value(name, Expr::text(text))
    }

    /// Sets a number.
    pub(crate) fn int(&mut self, name: &str, number: i64) -> &mut Self {
        self.value(name, Expr::int(number))
    }

    /// Sets a boolean.
    pub(crate) fn flag(&mut self, name: &str, flag: bool) -> &mut Self {
        self.value(name, Expr::flag(flag))
    }

    /// Sets a member if there is a value.
    pub(crate) fn opt_value(&mut self, name: &str, value: Option<Expr>) -> &mut Self {
        match value {
            Some(value) => self.value(name, value),
            None => self,
        }
    }

    /// Sets a list if it has items.
    pub(crate) fn list(&mut self, name: &str, items: Vec<Expr>) -> &mut Self {
        self.opt_value(name, Some(Expr::List(items.clone())).filter(|_| !items.is_empty()))
    }

    /// Sets inner blocks if there are any.
    pub(crate) fn blocks(&mut self, name: &str, blocks: Vec<Block>) -> &mut Self {
        if blocks.is_empty() { self } else { self.set(name, Item::Blocks(blocks)) }
    }

    /// Sets an inner block.
    pub(crate) fn block(&mut self, name: &str, block: Block) -> &mut Self {
        self.blocks(name, vec![block])
    }

    /// Sets the tags.
    pub(crate) fn tags(&mut self, tags: &BTreeMap<String, String>) -> &mut Self {
        self.text_map("tags", tags)
    }

    /// Sets a map of strings.
    pub(crate) fn text_map(&mut self, name: &str, map: &BTreeMap<String, String>) -> &mut Self {
        let members = map.iter().map(|(key, value)| (key.clone(), Expr::text(value)));
        self.set(name, Item::Map(members.collect()))
    }

    /// Returns the members, sorted by name.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&String, &Item)> {
        self.0.iter()
    }

    /// Returns the block as HCL. `head` is the text before the opening brace.
    pub(crate) fn render(&self, indent: usize, head: &str) -> String {
        let space = " ".repeat(indent);
        let mut out = format!("{space}{head} {{\n");
        let members: Vec<_> = self.0.iter().collect();
        let mut width = 0;
        for (at, (name, item)) in members.iter().enumerate() {
            match item {
                Item::Value(value) => {
                    if width == 0 {
                        let run =
                            members[at..].iter().take_while(|(_, i)| matches!(i, Item::Value(_)));
                        width = run.map(|(name, _)| name.len()).max().unwrap_or_default();
                    }
                    out.push_str(&format!("{space}  {name:width$} = {}\n", value.render()));
                    continue;
                }
                Item::Map(members) => out.push_str(&map(members, indent + 2, name)),
                Item::Blocks(blocks) => {
                    blocks.iter().for_each(|block| out.push_str(&block.render(indent + 2, name)));
                }
            }
            width = 0;
        }
        out.push_str(&format!("{space}}}\n"));
        out
    }
}

/// Returns a map with quoted keys and aligned values.
pub(crate) fn map(members: &BTreeMap<String, Expr>, indent: usize, name: &str) -> String {
    if members.is_empty() {
        return String::new();
    }
    let space = " ".repeat(indent);
    let width = members.keys().map(|key| quoted(key).len()).max().unwrap_or_default();
    let mut out = format!("{space}{name} = {{\n");
    for (key, value) in members {
        let key = quoted(key);
        let fill = " ".repeat(width - key.len());
        out.push_str(&format!("{space}  {key}{fill} = {}\n", value.render()));
    }
    out.push_str(&format!("{space}}}\n"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_strings_safely() {
        for (text, wanted) in [
            (r#"a"} resource "b" "c" {"#, r#""a\"} resource \"b\" \"c\" {""#),
            ("${file(\"/etc/shadow\")}", r#""$${file(\"/etc/shadow\")}""#),
            ("%{ if true }$ %", r#""%%{ if true }$ %""#),
            ("a\nb\u{1}", r#""a\nb\u0001""#),
            (r"\", r#""\\""#),
            // A doubled `$` before a brace is doubled again, where it would start a template.
            ("$${a}", r#""$$${a}""#),
        ] {
            assert_eq!(Expr::text(text).render(), wanted);
        }
    }

    #[test]
    fn aligns_adjacent_values() {
        let mut inner = Block::default();
        inner.text("x", "1");
        let mut block = Block::default();
        block.text("a", "1").int("long", 2).block("m", inner).flag("z", true);
        block.tags(&BTreeMap::from([("k".to_owned(), "v".to_owned())]));
        let wanted = "r {\n  a    = \"1\"\n  long = 2\n  m {\n    x = \"1\"\n  }\n  tags = {\n    \"k\" = \"v\"\n  }\n  z = true\n}\n";
        assert_eq!(block.render(0, "r"), wanted);
    }
}
