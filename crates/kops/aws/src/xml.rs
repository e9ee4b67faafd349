//! AWS' form of XML: elements contain text or elements, never both.

use quick_xml::{
    Reader,
    escape::{escape, resolve_predefined_entity},
    events::Event,
};
use serde_json::{Map, Value};

/// The deepest nesting of elements in an answer.
const DEEPEST: usize = 24;

/// The most elements of an answer. Each takes many times its text's memory.
const MOST: usize = 1_000_000;

/// Calls `visit` at the end of each element, with the names of its ancestors and its own, and its text. `deepest`
/// bounds the nesting.
pub fn elements(
    text: &[u8],
    deepest: usize,
    mut visit: impl FnMut(&[String], &str),
) -> Result<(), &'static str> {
    let mut reader = Reader::from_reader(text);
    reader.config_mut().expand_empty_elements = true;
    let (mut path, mut content): (Vec<String>, String) = (Vec::new(), String::new());
    let (mut ended, mut count) = (false, 0);
    loop {
        match reader.read_event().map_err(|_| "it is not XML, or it is truncated")? {
            Event::Start(_) if ended => return Err("it has several documents"),
            Event::Start(_) if path.len() >= deepest => return Err("it is too deep"),
            Event::Start(_) if count == MOST => return Err("it has too many elements"),
            Event::Start(start) => {
                count += 1;
                path.push(String::from_utf8_lossy(start.local_name().as_ref()).into_owned());
                content.clear();
            }
            Event::Text(text) => content.push_str(&text.decode().map_err(|_| "it is not UTF-8")?),
            Event::GeneralRef(reference) => {
                let known = match reference.resolve_char_ref() {
                    Ok(Some(c)) => Some(c.to_string()),
                    Ok(None) => {
                        let name = String::from_utf8_lossy(&reference).into_owned();
                        resolve_predefined_entity(&name).map(str::to_owned)
                    }
                    Err(_) => None,
                };
                content.push_str(&known.ok_or("it has an unknown entity")?);
            }
            Event::End(_) => {
                visit(&path, &content);
                path.pop();
                content.clear();
                ended = path.is_empty();
            }
            // No AWS service uses such sections; ignoring one would change a text.
            Event::CData(_) => return Err("it has a CDATA section"),
            Event::DocType(_) => return Err("it has a document type"),
            Event::Eof if ended => return Ok(()),
            Event::Eof => return Err("it is truncated"),
            _ => {}
        }
    }
}

/// An element that has not ended yet.
#[derive(Default)]
struct Open {
    members: Map<String, Value>,
    /// The elements of a list, which have one name.
    items: Vec<Value>,
}

/// Reports whether an element is a list item of its parent. AWS' lists contain `item` or `member`, or are the plural of
/// their items; one list of EC2 is an exception.
fn is_item(own: &str, parent: &str) -> bool {
    own == "item"
        || own == "member"
        || parent.strip_suffix('s') == Some(own)
        || (parent, own) == ("groupSet", "groupId")
}

/// Parses an answer into its root's name and its content. Lists are arrays, nested elements are objects, and everything
/// else is text. A list without items cannot be distinguished from an empty text.
pub fn tree(text: &[u8]) -> Result<(String, Value), &'static str> {
    let (mut open, mut root): (Vec<Open>, _) = (Vec::new(), (String::new(), Value::Null));
    elements(text, DEEPEST, |path, text| {
        open.truncate(path.len() + 1);
        open.resize_with(path.len() + 1, Open::default);
        let Some(own) = open.pop() else { return };
        let value = match (own.members.is_empty(), own.items.is_empty()) {
            (_, false) => Value::Array(own.items),
            (false, true) => Value::Object(own.members),
            (true, true) => Value::String(text.to_owned()),
        };
        match (path, open.last_mut()) {
            ([.., parent, name], Some(enclosing)) if is_item(name, parent) => {
                enclosing.items.push(value)
            }
            ([_, .., name], Some(enclosing)) => drop(enclosing.members.insert(name.clone(), value)),
            ([name], _) => root = (name.clone(), value),
            _ => {}
        }
    })?;
    Ok(root)
}

/// Writes parameters as elements. An array becomes consecutive elements of its name.
pub(crate) fn written(name: &str, value: &Value) -> String {
    match value {
        Value::Array(items) => items.iter().map(|item| written(name, item)).collect(),
        Value::Object(members) => {
            let inner: String = members.iter().map(|(name, value)| written(name, value)).collect();
            format!("<{name}>{inner}</{name}>")
        }
        Value::String(text) => format!("<{name}>{}</{name}>", escape(text.as_str())),
        other => format!("<{name}>{other}</{name}>"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parses_answers_into_trees() {
        let text = "<?xml version=\"1.0\"?><R xmlns=\"x\"><vpcSet><item><id>a</id><tagSet/></item><item><id>b&lt;</id>\
            <tagSet><item><key>k</key><value/></item></tagSet></item></vpcSet><Zones><Zone><Id>1</Id></Zone></Zones>\
            <IsTruncated>false</IsTruncated></R>";
        let wanted = json!({
            "vpcSet": [
                {"id": "a", "tagSet": ""},
                {"id": "b<", "tagSet": [{"key": "k", "value": ""}]},
            ],
            "Zones": [{"Id": "1"}],
            "IsTruncated": "false",
        });
        assert_eq!(tree(text.as_bytes()), Ok(("R".to_owned(), wanted)));
        for length in 0..text.len() {
            assert!(tree(&text.as_bytes()[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn rejects_hostile_documents() {
        let deep = format!("{}{}", "<item>".repeat(DEEPEST + 1), "</item>".repeat(DEEPEST + 1));
        let many = format!("<R>{}</R>", "<item/>".repeat(MOST));
        for text in [
            "<!DOCTYPE a [<!ENTITY b \"bbbb\">]><R>&b;</R>",
            "<R>&b;</R>",
            "<R></S>",
            "<R/><R/>",
            "",
            "{}",
            "<R><![CDATA[a]]></R>",
            "<R a=\"1\"",
            &deep,
            &many,
        ] {
            assert!(tree(text.as_bytes()).is_err(), "{text:.80}");
        }
    }

    #[test]
    fn keeps_foreign_elements_out_of_lists() {
        let text = "<R><vpcSet><evil><item/></evil><item><vpcId>a</vpcId></item>b</vpcSet><x:vpcId>c</x:vpcId></R>";
        let wanted = json!({"vpcSet": [{"vpcId": "a"}], "vpcId": "c"});
        assert_eq!(tree(text.as_bytes()), Ok(("R".to_owned(), wanted)));
    }

    #[test]
    fn written_parameters_parse_back() {
        let change = json!({"Name": "a<b>&\"c\"", "Alias": {"Id": "Z", "Well": false}});
        let text = written("Request", &json!({"Changes": {"Change": [change, change]}}));
        let (root, read) = tree(text.as_bytes()).unwrap();
        let change = json!({"Name": "a<b>&\"c\"", "Alias": {"Id": "Z", "Well": "false"}});
        assert_eq!((root.as_str(), read), ("Request", json!({"Changes": [change, change]})));
    }
}
