//! What lies in the store of an object. Custom kinds may have been stored in any version that their definition has
//! had, and some other server converts between those, so that behind a custom object's bytes stands its version.

use bytes::Bytes;

/// JSON has no line feed but in strings, where it is escaped, and so neither has an object's end.
const MARK: u8 = b'\n';

/// An object's bytes with the apiVersion that they are in.
pub(crate) fn mark(mut bytes: Vec<u8>, api_version: &str) -> Bytes {
    bytes.push(MARK);
    bytes.extend_from_slice(api_version.as_bytes());
    // A copy of the exact size: a vector has room to grow, and these bytes stay.
    Bytes::copy_from_slice(&bytes)
}

/// The object's bytes, and the apiVersion that they are marked with. Built-in kinds have none, and neither have
/// values that are no objects.
pub(crate) fn split(value: &Bytes) -> (Bytes, Option<&str>) {
    let unmarked = || (value.clone(), None);
    if !value.starts_with(api_codec::STORED_PREFIX) || value.ends_with(b"}") {
        return unmarked();
    }
    let Some(at) = value.iter().rposition(|b| *b == MARK) else { return unmarked() };
    match std::str::from_utf8(&value[at + 1..]) {
        Ok(version) => (value.slice(..at), Some(version)),
        Err(_) => unmarked(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_come_off() {
        let object = api_codec::encode_stored(
            &serde_json::json!({"metadata": {"name": "a\n"}, "spec": "x\ny}"}),
        );
        let marked = mark(object.clone(), "example.com/v1");
        assert_eq!(split(&marked), (object.clone().into(), Some("example.com/v1")));
        assert_eq!(split(&object.clone().into()), (object.into(), None));
        for other in ["", "\n", "1234", "a\nb", "{\n\"a\"", "{\"metadata\":{"] {
            assert_eq!(split(&other.into()), (other.into(), None));
        }
    }
}
