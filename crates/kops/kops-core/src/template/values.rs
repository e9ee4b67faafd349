//! The values of templates: Helm's syntax of `--set`, and the merge of files.

use serde_json::{Map, Value};

use super::error::TemplateError;

/// The largest index of a list, and the most parts of a path, as in Helm.
const MAX_INDEX: usize = 65_536;
const MAX_PARTS: usize = 30;

/// Merges values into others. Maps are merged by their keys; other values are replaced.
pub fn merge(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

/// Applies `a=1,b.c[0]=x,d={y,z}` to values. With `as_text` all values are strings; otherwise `true`, `false`, `null`
/// and integers are not.
pub fn set_values(
    values: &mut Map<String, Value>,
    text: &str,
    as_text: bool,
) -> Result<(), TemplateError> {
    let mut parser = Parser { text, rest: text, as_text };
    while !parser.rest.is_empty() {
        let path = parser.path()?;
        let value = parser.value()?;
        insert(values, &path, value)?;
    }
    Ok(())
}

/// A step of a path.
#[derive(Debug)]
enum Part {
    Key(String),
    Index(usize),
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    as_text: bool,
}

impl Parser<'_> {
    fn fail<T>(&self, problem: &'static str) -> Result<T, TemplateError> {
        Err(TemplateError::Set { text: self.text.to_owned(), problem })
    }

    /// Reads up to one of the ends, without the escapes. Returns the end, which is consumed.
    fn word(&mut self, ends: &[char]) -> (String, Option<char>) {
        let mut word = String::new();
        let mut characters = self.rest.chars();
        let end = loop {
            match characters.next() {
                Some('\\') => word.extend(characters.next()),
                Some(c) if ends.contains(&c) => break Some(c),
                Some(c) => word.push(c),
                None => break None,
            }
        };
        self.rest = characters.as_str();
        (word, end)
    }

    /// Reads a path and its equals sign.
    fn path(&mut self) -> Result<Vec<Part>, TemplateError> {
        let mut path = Vec::new();
        loop {
            let (key, end) = self.word(&['.', '=', '[', ',']);
            // After an index, a dot or the equals sign follows directly.
            if !(key.is_empty() && matches!(path.last(), Some(Part::Index(_)))) {
                if key.is_empty() {
                    return self.fail("a key is empty");
                }
                path.push(Part::Key(key));
            }
            if path.len() > MAX_PARTS {
                return self.fail("a key has more than 30 parts");
            }
            match end {
                Some('.') => {}
                Some('=') => return Ok(path),
                Some('[') => {
                    let (number, end) = self.word(&[']']);
                    match (number.parse::<usize>(), end) {
                        (Ok(index), Some(_)) if index <= MAX_INDEX => path.push(Part::Index(index)),
                        (Ok(index), _) if index > MAX_INDEX => {
                            return self.fail("an index is greater than 65536");
                        }
                        _ => return self.fail("an index is not a number in brackets"),
                    }
                    if self.rest.starts_with('.') {
                        self.rest = &self.rest[1..];
                        continue;
                    }
                    if !self.rest.starts_with(['=', '[']) {
                        return self.fail("after an index, \"=\" is missing");
                    }
                }
                _ => return self.fail("a key has no value"),
            }
        }
    }

    /// Reads a value and the comma after it.
    fn value(&mut self) -> Result<Value, TemplateError> {
        if let Some(list) = self.rest.strip_prefix('{') {
            self.rest = list;
            let mut items = Vec::new();
            loop {
                let (item, end) = self.word(&[',', '}']);
                if !(item.is_empty() && items.is_empty() && end == Some('}')) {
                    items.push(self.scalar(item));
                }
                match end {
                    Some(',') => {}
                    Some(_) => break,
                    None => return self.fail("a list must terminate with \"}\""),
                }
            }
            match self.rest.strip_prefix(',') {
                Some(rest) => self.rest = rest,
                None if self.rest.is_empty() => {}
                None => return self.fail("after a list, \",\" is missing"),
            }
            return Ok(Value::Array(items));
        }
        let (word, _) = self.word(&[',']);
        Ok(self.scalar(word))
    }

    fn scalar(&self, word: String) -> Value {
        let is_padded = word.len() > 1 && word.starts_with('0');
        match word.as_str() {
            _ if self.as_text => word.into(),
            "true" => true.into(),
            "false" => false.into(),
            "null" => Value::Null,
            text => match text.parse::<i64>() {
                Ok(number) if !is_padded => number.into(),
                _ => word.into(),
            },
        }
    }
}

/// Inserts a value, creating maps and lists.
fn insert(
    values: &mut Map<String, Value>,
    path: &[Part],
    value: Value,
) -> Result<(), TemplateError> {
    let Some((Part::Key(first), rest)) = path.split_first() else { return Ok(()) };
    let mut at = values.entry(first.clone()).or_insert(Value::Null);
    let mut walked = first.clone();
    for part in rest {
        let wrong = |actual: &Value, wanted| {
            let actual = match actual {
                Value::Object(_) => "a map",
                Value::Array(_) => "a list",
                _ => "a single value",
            };
            TemplateError::SetType { path: walked.clone(), actual, wanted }
        };
        at = match part {
            Part::Key(key) => {
                if at.is_null() {
                    *at = Value::Object(Map::new());
                }
                if !at.is_object() {
                    return Err(wrong(at, "a map"));
                }
                walked = format!("{walked}.{key}");
                match at.as_object_mut() {
                    Some(map) => map.entry(key.clone()).or_insert(Value::Null),
                    None => return Ok(()),
                }
            }
            Part::Index(index) => {
                if at.is_null() {
                    *at = Value::Array(Vec::new());
                }
                if !at.is_array() {
                    return Err(wrong(at, "a list"));
                }
                walked = format!("{walked}[{index}]");
                match at.as_array_mut() {
                    Some(list) => {
                        if list.len() <= *index {
                            list.resize(index + 1, Value::Null);
                        }
                        &mut list[*index]
                    }
                    None => return Ok(()),
                }
            }
        };
    }
    *at = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(texts: &[(&str, bool)]) -> Result<Value, String> {
        let mut values = Map::new();
        for (text, as_text) in texts {
            set_values(&mut values, text, *as_text).map_err(|e| e.to_string())?;
        }
        Ok(Value::Object(values))
    }

    #[test]
    fn sets_values_as_helm_does() {
        for (texts, want) in [
            (&[("a=1,b.c=x", false)][..], json!({"a": 1, "b": {"c": "x"}})),
            (
                &[("a=true,b=null,c=007,d=-3,e=1.5", false)],
                json!({"a": true, "b": null, "c": "007", "d": -3, "e": "1.5"}),
            ),
            (&[("a=1,b=true", true)], json!({"a": "1", "b": "true"})),
            (&[("a={1,x},b={}", false)], json!({"a": [1, "x"], "b": []})),
            (&[("a[1].b=2,a[0]=x", false)], json!({"a": ["x", {"b": 2}]})),
            (&[("a\\.b=x\\,y,c=p=q", false)], json!({"a.b": "x,y", "c": "p=q"})),
            (&[("a=", false)], json!({"a": ""})),
            // The example of upstream's documentation.
            (
                &[("foo.myArray={1,2,3}", true), ("foo.myArray[1]=false,foo.myArray[3]=4", false)],
                json!({"foo": {"myArray": ["1", false, "3", 4]}}),
            ),
        ] {
            assert_eq!(set(texts), Ok(want), "{texts:?}");
        }
    }

    #[test]
    fn rejects_malformed_values() {
        let deep = format!("{}=1", vec!["a"; 40].join("."));
        for (text, reason) in [
            ("a", "has no value"),
            ("a,b=1", "has no value"),
            ("=1", "a key is empty"),
            ("a..b=1", "a key is empty"),
            ("a[x]=1", "not a number"),
            ("a[1=1", "not a number"),
            ("a[99999999]=1", "greater than 65536"),
            ("a[0]b=1", "\"=\" is missing"),
            ("a={1", "must terminate"),
            ("a={1}x", "\",\" is missing"),
            ("a=1,a.b=2", "\"a\" is a single value, but a map is needed"),
            ("a.b=1,a[0]=2", "\"a\" is a map, but a list is needed"),
            (deep.as_str(), "more than 30 parts"),
        ] {
            let error = set(&[(text, false)]).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn merges_maps_deeply() {
        let mut values = Map::new();
        for tree in [
            json!({"groups": {"foo": {"ami": "ami-1", "type": "m4.large"}}, "list": [1, 2]}),
            json!({"groups": {"foo": {"type": "t2.large"}}, "list": [3]}),
        ] {
            let Value::Object(tree) = tree else { panic!("{tree}") };
            merge(&mut values, tree);
        }
        let want = json!({"groups": {"foo": {"ami": "ami-1", "type": "t2.large"}}, "list": [3]});
        assert_eq!(Value::Object(values), want);
    }
}
