//! Tests of key files, and of signatures of damaged and forged answers.

use hickory_proto::op::{MessageType, OpCode};

use super::*;

const KEY: &str = "key \"k.example\" { algorithm hmac-sha256; secret \"c2VjcmV0\"; };";
const NOW: u64 = 1_800_000_000;

fn key(text: &str) -> TsigKey {
    TsigKey::parse(text).unwrap()
}

/// Returns an answer that a server signs with the key, for a request with this MAC.
fn signed_answer(key: &TsigKey, request_mac: &[u8], time: u64, error: Option<Code>) -> Vec<u8> {
    let mut message = Message::new(7, MessageType::Response, OpCode::Update);
    let plain = message.to_vec().unwrap();
    let tsig = TSIG::new(key.algorithm.clone(), time, FUDGE, Vec::new(), 7, error, Vec::new());
    let mut fields = Vec::new();
    tsig.emit_tsig_for_mac(&mut BinEncoder::new(&mut fields), &key.name).unwrap();
    let length = u16::try_from(request_mac.len()).unwrap().to_be_bytes();
    let signed = [&length[..], request_mac, &plain, &fields].concat();
    let mac = hmac::sign(&key.key, &signed).as_ref().to_vec();
    message.signature = Some(Box::new(make_tsig_record(key.name.clone(), tsig.set_mac(mac))));
    message.to_vec().unwrap()
}

#[test]
fn reads_key_files() {
    for text in [
        KEY,
        "key k.example. {\n\talgorithm hmac-sha512;\n\tsecret \"c2VjcmV0\";\n};\n",
        "# comment\n// another\n/* and\none */ key K.Example{secret \"c2VjcmV0\";algorithm HMAC-SHA224;};",
        "key \"k.example\" { algorithm \"hmac-sha384\"; secret c2VjcmV0; };",
    ] {
        assert_eq!(key(text).name.to_ascii(), "k.example.", "{text}");
    }
    for (text, reason) in [
        ("", "is not one key statement"),
        ("c2VjcmV0", "is not one key statement"),
        ("key \"k\" { };", "algorithm \"\""),
        ("key \"k\" { algorithm hmac-md5; secret \"c2VjcmV0\"; };", "algorithm \"hmac-md5\""),
        ("key \"k\" { algorithm hmac-sha1; secret \"c2VjcmV0\"; };", "algorithm \"hmac-sha1\""),
        ("key \"k\" { algorithm hmac-sha256; secret \"?\"; };", "not base64"),
        ("key \"k\" { algorithm hmac-sha256; };", "has no secret"),
        ("key \"k\" { algorithm hmac-sha256; secret \"YQ==\"; secret \"YQ==\"; };", "one secret"),
        ("key \"k\" { algorithm hmac-sha256; secret \"YQ==\" };", "one secret"),
        ("key \"k", "text without an end"),
        ("/* key", "comment without an end"),
        ("key \"a..b\" { algorithm hmac-sha256; secret \"YQ==\"; };", "invalid name"),
    ] {
        let error = TsigKey::parse(text).err().unwrap().to_string();
        assert!(error.contains(reason), "{text}: {error}");
        assert!(!error.contains("c2VjcmV0"), "{error}");
    }
    let huge = "key \"k\" { algorithm hmac-sha256; ".repeat(50_000);
    assert!(TsigKey::parse(&huge).is_err());
}

#[test]
fn verifies_answers_to_own_requests() {
    for algorithm in ["hmac-sha224", "hmac-sha256", "hmac-sha384", "hmac-sha512"] {
        let own = key(&KEY.replace("hmac-sha256", algorithm));
        let mut request = Message::new(7, MessageType::Query, OpCode::Update);
        let (bytes, mac) = own.sign(&mut request, NOW).unwrap();
        // The signed request has the signature as its last record.
        let (record, _) = last_record(&bytes).unwrap();
        assert!(matches!(&record.data, RData::TSIG(tsig) if tsig.mac == mac));
        let answer = signed_answer(&own, &mac, NOW, None);
        assert_eq!(own.verify(&answer, &mac, NOW), Ok(()));
        assert_eq!(own.verify(&answer, &mac, NOW + 300), Ok(()));
        // A server may forward an update under another ID.
        let mut other_id = answer.clone();
        other_id[0] ^= 0x55;
        assert_eq!(own.verify(&other_id, &mac, NOW), Ok(()));
        for (answer, error) in [
            (signed_answer(&own, b"other request", NOW, None), SignatureError::Wrong),
            (signed_answer(&own, &mac, NOW - 301, None), SignatureError::Time),
            (
                signed_answer(&own, &mac, NOW, Some(Code::BadTime)),
                SignatureError::Rejected("BADTIME".to_owned()),
            ),
        ] {
            assert_eq!(own.verify(&answer, &mac, NOW), Err(error));
        }
        let other_secret = key(&KEY.replace("hmac-sha256", algorithm).replace("c2V", "d2V"));
        assert_eq!(other_secret.verify(&answer, &mac, NOW), Err(SignatureError::Wrong));
        let other_name = key(&KEY.replace("hmac-sha256", algorithm).replace("k.ex", "l.ex"));
        assert_eq!(other_name.verify(&answer, &mac, NOW), Err(SignatureError::OtherKey));
    }
}

#[test]
fn unsigned_and_changed_answers_are_not_trusted() {
    let own = key(KEY);
    let mac = [1; 32];
    let plain = Message::new(7, MessageType::Response, OpCode::Update).to_vec().unwrap();
    assert_eq!(own.verify(&plain, &mac, NOW), Err(SignatureError::Unsigned));
    let rejected =
        TSIG::new(own.algorithm.clone(), NOW, FUDGE, Vec::new(), 7, Some(Code::BadKey), Vec::new());
    let mut message = Message::new(7, MessageType::Response, OpCode::Update);
    message.signature = Some(Box::new(make_tsig_record(own.name.clone(), rejected)));
    assert_eq!(
        own.verify(&message.to_vec().unwrap(), &mac, NOW),
        Err(SignatureError::Rejected("BADKEY".to_owned()))
    );
    let answer = signed_answer(&own, &mac, NOW, None);
    for at in 0..answer.len() {
        for bit in 0..8 {
            let mut changed = answer.clone();
            changed[at] ^= 1 << bit;
            // The ID is that of the request before the signature, and names are compared without their case.
            if own.verify(&changed, &mac, NOW).is_ok() {
                let is_letter = answer[at].is_ascii_alphabetic() && bit == 5;
                assert!(at < 2 || is_letter, "byte {at}, bit {bit}");
            }
        }
        assert!(own.verify(&answer[..at], &mac, NOW).is_err());
    }
    let mut longer = answer;
    longer.push(0);
    assert!(matches!(own.verify(&longer, &mac, NOW), Err(SignatureError::Malformed(_))));
}

#[test]
fn damaged_answers() {
    let own = key(KEY);
    let mac = [1; 32];
    let answer = signed_answer(&own, &mac, NOW, None);
    fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "dns-answers", &[&answer], |input| {
        let _ = own.verify(input, &mac, NOW);
        let _ = Message::from_vec(input);
    });
}
