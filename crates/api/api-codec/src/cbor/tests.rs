use data_encoding::HEXLOWER;
use serde_json::{Value, json};

use super::*;

fn hex(text: &str) -> Vec<u8> {
    HEXLOWER.decode(text.replace(' ', "").as_bytes()).unwrap()
}

#[test]
fn encodes_deterministically() {
    // The self-described tag, byte strings, sorted keys, and the shortest form of each number.
    for (tree, bytes) in [
        (json!({"kind": "Pod", "a": null}), "d9d9f7 a2 4161 f6 446b696e64 43506f64"),
        (json!({"bb": 1, "c": 2, "aa": 3}), "d9d9f7 a3 4163 02 426161 03 426262 01"),
        (json!([0, 23, 24, 256, 65_536]), "d9d9f7 85 00 17 1818 190100 1a00010000"),
        (json!([-1, -24, -25, i64::MIN]), "d9d9f7 84 20 37 3818 3b7fffffffffffffff"),
        (json!([1.5, 0.1, true, false]), "d9d9f7 84 f93e00 fb3fb999999999999a f5 f4"),
    ] {
        assert_eq!(to_cbor(&tree), hex(bytes), "{tree}");
        assert_eq!(from_cbor(&hex(bytes)).unwrap(), tree);
    }
    let event = watch_event("ADDED", &json!({"a": 1}));
    assert_eq!(event, hex("d9d9f7 a2 4474797065 454144444544 466f626a656374 d9d9f7 a1 4161 01"));
    assert_eq!(from_cbor(&event).unwrap(), json!({"type": "ADDED", "object": {"a": 1}}));
}

#[test]
fn reads_every_form_with_a_json_value() {
    for (bytes, tree) in [
        // Without the tag, text strings, indefinite lengths, longer numbers than needed.
        ("a1 6161 01", json!({"a": 1})),
        ("bf 6161 9f 01 02 ff ff", json!({"a": [1, 2]})),
        ("7f 6161 6162 ff", json!("ab")),
        ("5f 4161 4162 ff", json!("ab")),
        ("1b 0000000000000001", json!(1)),
        ("f7", Value::Null),
        // Bytes of later encodings, times, and tags without a meaning here.
        ("d5 43 fbff01", json!("-_8B")),
        ("d6 43 fbff01", json!("+/8B")),
        ("d7 43 fbff01", json!("fbff01")),
        ("c0 74 323031332d30332d32315432303a30343a30305a", json!("2013-03-21T20:04:00Z")),
        ("c1 1a 514b67b0", json!("2013-03-21T20:04:00Z")),
        ("c1 fb 41d452d9ec200000", json!("2013-03-21T20:04:00.5Z")),
        ("d9d9f7 d9d9f7 80", json!([])),
        ("d83c 01", json!(1)),
    ] {
        assert_eq!(from_cbor(&hex(bytes)), Ok(tree), "{bytes}");
    }
}

#[test]
fn rejects_input_without_json_value() {
    for (bytes, error) in [
        ("", CborError::Truncated),
        ("d9d9f7", CborError::Truncated),
        ("44 616263", CborError::Truncated),
        ("82 01", CborError::Truncated),
        ("9f 01", CborError::Truncated),
        // Lengths beyond the input allocate nothing.
        ("5b 7fffffffffffffff", CborError::Truncated),
        ("9b 7fffffffffffffff 01", CborError::Truncated),
        ("bb 7fffffffffffffff 4161 01", CborError::Truncated),
        ("01 02", CborError::Extraneous { count: 1, at: 1 }),
        ("ff", CborError::Malformed(0)),
        ("82 01 ff", CborError::Malformed(2)),
        ("bf 4161 ff", CborError::Malformed(3)),
        ("5f 6161 ff", CborError::Malformed(1)),
        ("5f 5f 4161 ff ff", CborError::Malformed(1)),
        ("a2 4161 01 6161 02", CborError::DuplicateKey("a".to_owned())),
        ("a1 01 02", CborError::Key(1)),
        ("a1 d9d9f7 4161 02", CborError::Key(1)),
        ("62 c328", CborError::Utf8(0)),
        ("42 c328", CborError::Utf8(0)),
        ("7f 61 c3 61 a9 ff", CborError::Utf8(1)),
        ("1b 8000000000000000", CborError::Overflow(0)),
        ("3b 8000000000000000", CborError::Overflow(0)),
        ("c2 41 01", CborError::Overflow(1)),
        ("f97e00", CborError::NotFinite(0)),
        ("f97c00", CborError::NotFinite(0)),
        ("e0", CborError::Simple(0)),
        ("c0 61 61", CborError::Time(1)),
        ("c0 01", CborError::Time(1)),
        ("c1 1b 7fffffffffffffff", CborError::Time(1)),
        ("c1 fb 7fefffffffffffff", CborError::Time(1)),
    ] {
        assert_eq!(from_cbor(&hex(bytes)), Err(error), "{bytes}");
    }
}

#[test]
fn bounds_depth_and_memory() {
    for head in [0x81, 0x9f, 0xa1, 0xd8, 0xc0, 0xc1, 0xc6] {
        // An array, an array of indefinite length, maps with the key "", and tags: two of times, and others.
        let level: &[u8] = match head {
            0xa1 => &[0xa1, 0x40],
            0xd8 => &[0xd8, 0x64],
            _ => &[head],
        };
        let deep = level.repeat(1 << 20);
        assert!(matches!(from_cbor(&deep), Err(CborError::Exceeded(_))), "{head:x}");
    }
    // The densest input: empty arrays.
    let mut dense = hex("9a 00300000");
    dense.resize(dense.len() + (3 << 20), 0x80);
    assert!(matches!(from_cbor(&dense), Err(CborError::Exceeded(_))));
    // A single large string.
    let mut long = hex("5a 02000000");
    long.resize(long.len() + (32 << 20), b'a');
    assert_eq!(from_cbor(&long).unwrap().as_str().unwrap().len(), 32 << 20);
}
