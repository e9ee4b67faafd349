//! Tests with requests and certificates that no honest tool creates.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use crate::{
    authority::Authority,
    cert::Cert,
    client::{ClientCa, ClientError},
    csr::SigningRequest,
    der::{self, Extensions, ToBeSigned},
    element::{OBJECT_ID, OCTET_STRING, SEQUENCE, SET},
    error::Error,
    identity::Identity,
    key::{Key, KeyAlgorithm},
    names::Usage,
    pem::encode,
    validity::Validity,
};

const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const ORGANIZATION: &[u8] = &[0x55, 4, 10];
const UNIT: &[u8] = &[0x55, 4, 11];
const SERIAL_NUMBER: &[u8] = &[0x55, 4, 5];
const EMAIL: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1];
const UID: &[u8] = &[0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2];
const UNKNOWN: &[u8] = &[0x2a, 3, 4];
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 14];
const CHALLENGE: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 7];
const ALT_NAMES: &[u8] = &[0x55, 0x1d, 0x11];
const CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const T61: u8 = 0x14;
const IA5: u8 = 0x16;
const UNIVERSAL: u8 = 0x1c;
const BMP: u8 = 0x1e;

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

fn validity() -> Validity {
    Validity::starting(now(), Duration::from_secs(86_400))
}

fn key() -> Key {
    Key::generate(KeyAlgorithm::EcdsaP256).unwrap()
}

fn authority() -> Authority {
    Authority::create("kubernetes", KeyAlgorithm::EcdsaP256, validity()).unwrap()
}

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut out = vec![tag];
    match length {
        0..=0x7f => out.push(length as u8),
        0x80..=0xff => out.extend([0x81, length as u8]),
        0x100..=0xffff => out.extend([0x82, (length >> 8) as u8, length as u8]),
        _ => out.extend([0x83, (length >> 16) as u8, (length >> 8) as u8, length as u8]),
    }
    out.extend(content);
    out
}

/// Encodes one attribute of a name.
fn value(kind: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
    element(SEQUENCE, &[element(OBJECT_ID, kind), element(tag, text)].concat())
}

fn set(attributes: &[Vec<u8>]) -> Vec<u8> {
    element(SET, &attributes.concat())
}

fn name(sets: &[Vec<u8>]) -> Vec<u8> {
    element(SEQUENCE, &sets.concat())
}

/// Encodes a node's name with additional sets.
fn node_and(more: &[Vec<u8>]) -> Vec<u8> {
    let own = [
        set(&[value(ORGANIZATION, PRINTABLE, b"system:nodes")]),
        set(&[value(COMMON_NAME, PRINTABLE, b"system:node:a")]),
    ];
    name(&[&own[..], more].concat())
}

fn requested_attributes(attributes: &[(&[u8], Vec<u8>)]) -> Vec<u8> {
    let attribute = |(kind, value): &(&[u8], Vec<u8>)| {
        element(SEQUENCE, &[element(OBJECT_ID, kind), element(SET, value)].concat())
    };
    attributes.iter().flat_map(attribute).collect()
}

fn extensions(list: &[(&[u8], Vec<u8>)]) -> Vec<u8> {
    let extension = |(kind, value): &(&[u8], Vec<u8>)| {
        element(SEQUENCE, &[element(OBJECT_ID, kind), element(OCTET_STRING, value)].concat())
    };
    element(SEQUENCE, &list.iter().flat_map(extension).collect::<Vec<u8>>())
}

/// Encodes a correctly signed request with this name and these attributes.
fn request(name: &[u8], attributes: &[u8]) -> Vec<u8> {
    let key = key();
    let parts =
        [vec![2, 1, 0], name.to_vec(), key.public_der().unwrap(), element(0xa0, attributes)];
    der::signed(&element(SEQUENCE, &parts.concat()), &key).unwrap()
}

fn pem(der: &[u8]) -> String {
    encode("CERTIFICATE REQUEST", der)
}

/// Returns the identity of a certificate that is signed for the request, or the error.
fn outcome(text: &str) -> Result<Identity, String> {
    let request = SigningRequest::from_pem(text).map_err(|error| error.to_string())?;
    let info = request.info().map_err(|error| error.to_string())?;
    let ca = authority();
    let cert = ca.sign_request(&request, Usage::Client, validity()).unwrap();
    let trusted = ClientCa::from_pem(ca.cert().to_pem().as_bytes()).unwrap();
    let verified = trusted.verify(&[cert.to_rustls()], now()).unwrap().expect("it names a user");
    // The approved contents are those that authenticate.
    let (mut judged, mut groups) = (info.subject.organizations, verified.identity.groups.clone());
    judged.sort();
    groups.sort();
    assert_eq!((&info.subject.common_name, judged), (&verified.identity.name, groups));
    assert_eq!(verified.identity.uid, "");
    // Another parser also finds only one common name.
    let (_, other) = x509_parser::parse_x509_certificate(cert.der()).unwrap();
    assert_eq!(other.subject().iter_common_name().count(), 1);
    Ok(verified.identity)
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
fn rejects_ambiguous_and_malformed_requests() {
    let cn = |text: &str| value(COMMON_NAME, UTF8, text.as_bytes());
    let manager = "system:kube-controller-manager";
    let plain = request(&node_and(&[]), &[]);
    assert_eq!(outcome(&pem(&plain)).unwrap().name, "system:node:a");
    let of = |name: &[u8]| pem(&request(name, &[]));
    let with = |attributes: &[(&[u8], Vec<u8>)]| {
        pem(&request(&node_and(&[]), &requested_attributes(attributes)))
    };
    let alt = |names: &[u8]| extensions(&[(ALT_NAMES, element(SEQUENCE, names))]);
    let other = pem(&request(&name(&[set(&[cn(manager)])]), &[]));
    let mut forged = plain.clone();
    let at = forged.windows(6).position(|bytes| bytes == b"node:a").unwrap() + 5;
    forged[at] = b'b';
    let half = pem(&plain).len() / 2;
    let cases: &[(String, &str)] = &[
        (of(&node_and(&[set(&[cn(manager)])])), "its subject has 2 common names"),
        (of(&name(&[set(&[cn("system:node:a"), cn(manager)])])), "its subject has 2 common names"),
        (of(&node_and(&[set(&[cn("system:node:a")])])), "its subject has 2 common names"),
        (
            of(&node_and(&[set(&[value(COMMON_NAME, UNIVERSAL, b"\0\0\0a")])])),
            "not a readable string",
        ),
        (of(&node_and(&[set(&[value(COMMON_NAME, 0x2c, b"a")])])), "not a readable string"),
        (of(&name(&[set(&[value(COMMON_NAME, PRINTABLE, b"\xff")])])), "not a readable string"),
        (of(&name(&[set(&[value(COMMON_NAME, BMP, b"abc")])])), "not a readable string"),
        (of(&name(&[set(&[cn("system:node:a\0.evil")])])), "has a control character"),
        (of(&name(&[set(&[cn("a\nb")])])), "has a control character"),
        (of(&name(&[])), "no common name"),
        (of(&name(&[set(&[cn("")])])), "no common name"),
        (of(&name(&[set(&[])])), "empty set"),
        (of(&node_and(&[set(&[value(ORGANIZATION, UTF8, b"")])])), "an empty organization"),
        (
            of(&node_and(&[set(&[value(UNIT, UTF8, b"a"), value(ORGANIZATION, UTF8, b"b")])])),
            "several kinds in one set",
        ),
        (of(&node_and(&[set(&[value(UID, UTF8, b"0")])])), "unknown attribute 1.3.6.1.4.1.57683.2"),
        (of(&node_and(&[set(&[value(UNKNOWN, UTF8, b"a")])])), "unknown attribute 1.2.3.4"),
        (of(&node_and(&[element(SEQUENCE, b"")])), "tag 0x30 instead of 0x31"),
        (
            of(&node_and(&[set(&[element(
                SEQUENCE,
                &[element(OBJECT_ID, UNIT), element(UTF8, b"a"), element(UTF8, b"b")].concat(),
            )])])),
            "bytes after its end",
        ),
        // A set whose second attribute is malformed: some parsers stop there without an error.
        (
            of(&node_and(&[element(SET, &[value(UNIT, UTF8, b"a"), vec![0x30, 0x7f]].concat())])),
            "it is not DER",
        ),
        (with(&[(UNKNOWN, element(UTF8, b"a"))]), "unknown attribute 1.2.3.4"),
        (
            with(&[
                (EXTENSION_REQUEST, extensions(&[])),
                (EXTENSION_REQUEST, alt(&element(0x82, b"a"))),
            ]),
            "the attribute 1.2.840.113549.1.9.14 twice",
        ),
        (
            with(&[(EXTENSION_REQUEST, [extensions(&[]), alt(&element(0x82, b"a"))].concat())]),
            "bytes after its end",
        ),
        (
            with(&[(EXTENSION_REQUEST, extensions(&[(UNKNOWN, vec![])]))]),
            "unknown extension 1.2.3.4",
        ),
        (
            with(&[(
                EXTENSION_REQUEST,
                extensions(&[
                    (ALT_NAMES, element(SEQUENCE, b"")),
                    (ALT_NAMES, element(SEQUENCE, b"")),
                ]),
            )]),
            "the extension 2.5.29.17 twice",
        ),
        (
            with(&[(EXTENSION_REQUEST, extensions(&[(ALT_NAMES, b"junk".to_vec())]))]),
            "it is not DER",
        ),
        (
            with(&[(EXTENSION_REQUEST, extensions(&[(ALT_NAMES, element(UTF8, b"a"))]))]),
            "the list of subjectAltNames has tag",
        ),
        (with(&[(EXTENSION_REQUEST, alt(&element(0x82, b"a\0b")))]), "not of printable ASCII"),
        (with(&[(EXTENSION_REQUEST, alt(&element(0x87, b"12345")))]), "not an IP address"),
        (with(&[(EXTENSION_REQUEST, alt(&element(0xa0, b"")))]), "not a DNS name, e-mail address"),
        (pem(&plain) + &other, "something after the CERTIFICATE REQUEST block"),
        (pem(&plain) + "more", "something after the CERTIFICATE REQUEST block"),
        (
            format!("Subject: CN=b {}", pem(&plain)),
            "something before the CERTIFICATE REQUEST block",
        ),
        (
            encode("CERTIFICATE", &plain) + &pem(&plain),
            "something before the CERTIFICATE REQUEST block",
        ),
        (encode("CERTIFICATE", &plain), "PEM block type must be CERTIFICATE REQUEST"),
        (encode("NEW CERTIFICATE REQUEST", &plain), "PEM block type must be CERTIFICATE REQUEST"),
        (String::new(), "PEM block type must be CERTIFICATE REQUEST"),
        (pem(&plain).replacen('\n', "\nProc-Type: 4,ENCRYPTED\n\n", 1), "is not base64"),
        (pem(&plain)[..half].to_owned(), "has no end"),
        (pem(&plain)[..half].to_owned() + &other, "is not base64"),
        (pem(&[&plain[..], &[5, 0]].concat()), "bytes after its end"),
        (pem(&plain[..plain.len() - 1]), "it is not DER"),
        (pem(&forged), "not signed by the key that it names"),
        (of(&node_and(&[set(&[value(UNIT, UTF8, &[b'a'; 70_000])])])), "larger than 65536 bytes"),
    ];
    for (text, wanted) in cases {
        let refusal = outcome(text).unwrap_err();
        assert!(refusal.contains(wanted), "expected {wanted:?}, got {refusal:?}");
    }
}

#[test]
fn signs_requests_of_common_tools() {
    let text = |bytes: &[u8]| value(COMMON_NAME, bytes[0], &bytes[1..]);
    for (written, read) in [
        (&b"\x13jane"[..], "jane"),
        (b"\x16jane@example.org", "jane@example.org"),
        ("\u{c}j\u{e4}ne".as_bytes(), "j\u{e4}ne"),
        (b"\x14j\xe4ne", "j\u{e4}ne"),
        (b"\x1e\0j\0\xe4\0n\0e", "j\u{e4}ne"),
    ] {
        let der = request(&name(&[set(&[text(written)])]), &[]);
        assert_eq!(outcome(&pem(&der)).unwrap().name, read);
    }
    // OpenSSL's defaults: a set for each attribute, an e-mail address, a challenge, constraints beside the names.
    let groups = ["dev", "ops"].map(|group| set(&[value(ORGANIZATION, UTF8, group.as_bytes())]));
    let [dev, ops] = groups;
    let subject = name(&[
        set(&[value(&[0x55, 4, 6], PRINTABLE, b"DE")]),
        ops,
        dev,
        set(&[value(UNIT, UTF8, b"unit")]),
        set(&[value(COMMON_NAME, UTF8, b"jane")]),
        set(&[value(EMAIL, IA5, b"jane@example.org")]),
    ]);
    let names = element(
        SEQUENCE,
        &[
            element(0x81, b"j@example.org"),
            element(0x82, b"*.example.org"),
            element(0x86, b"spiffe://a/b"),
            element(0x87, &[10, 0, 0, 1]),
            element(0x87, &[0; 16]),
        ]
        .concat(),
    );
    let constraints = element(SEQUENCE, &[1, 1, 0xff]);
    let attributes = requested_attributes(&[
        (CHALLENGE, element(UTF8, b"secret")),
        (EXTENSION_REQUEST, extensions(&[(CONSTRAINTS, constraints), (ALT_NAMES, names)])),
    ]);
    let der = request(&subject, &attributes);
    // OpenSSL prints a request's text before it.
    assert!(outcome(&format!("Subject: CN=j\n  # more\n{}", pem(&der))).is_ok());
    let text = format!("\n {} \r\n", pem(&der).replace('\n', "\r\n"));
    let identity = outcome(&text).unwrap();
    assert_eq!(
        (identity.name.as_str(), identity.groups),
        ("jane", vec!["dev".into(), "ops".into()])
    );
    let request = SigningRequest::from_pem(&text).unwrap();
    let cert = authority().sign_request(&request, Usage::Client, validity()).unwrap();
    let names: Vec<String> =
        cert.info().unwrap().alt_names.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["j@example.org", "*.example.org", "spiffe://a/b", "10.0.0.1", "::"]);
    // Unit and country stay, as in upstream. The e-mail address is dropped, and the request cannot ask for an
    // authority.
    assert_eq!(cert.subject_text(), "C=DE, O=dev + O=ops, OU=unit, CN=jane");
    assert!(!cert.info().unwrap().is_ca);
}

/// Issues a client certificate with any subject by a trusted authority.
fn certificate(by: &Authority, subject: &[u8]) -> Cert {
    let at = |moment: SystemTime| time::OffsetDateTime::from(moment);
    let der = der::certificate(
        &ToBeSigned {
            serial: &[1],
            issuer: &by.cert().raw_subject().unwrap(),
            subject,
            not_before: at(validity().not_before),
            not_after: at(validity().not_after),
            public_key: &key().public_der().unwrap(),
            extensions: Extensions { client: true, is_ca: Some(false), ..Extensions::default() },
        },
        by.key(),
    );
    Cert::from_der(der.unwrap()).unwrap()
}

#[test]
fn rejects_client_certificate_with_ambiguous_identity() {
    let ca = authority();
    let trusted = ClientCa::from_pem(ca.cert().to_pem().as_bytes()).unwrap();
    let verify = |subject: &[u8]| trusted.verify(&[certificate(&ca, subject).to_rustls()], now());
    let cn = |text: &str| value(COMMON_NAME, UTF8, text.as_bytes());
    let uid = |text: &str| set(&[value(UID, UTF8, text.as_bytes())]);
    for (subject, wanted) in [
        (node_and(&[set(&[cn("system:kube-controller-manager")])]), "has 2 common names"),
        (name(&[set(&[cn("a"), cn("b")])]), "has 2 common names"),
        (name(&[set(&[cn("a"), cn("")])]), "has 2 common names"),
        (name(&[set(&[value(COMMON_NAME, UNIVERSAL, b"\0\0\0a")])]), "not a readable string"),
        (name(&[set(&[cn("a\0b")])]), "has a control character"),
        (node_and(&[set(&[value(ORGANIZATION, UNIVERSAL, b"\0\0\0a")])]), "not a readable string"),
        (node_and(&[uid("1"), uid("2")]), "expected 1 UID, but found multiple"),
        (node_and(&[uid("")]), "its UID cannot be an empty string"),
    ] {
        match verify(&subject) {
            Err(ClientError::Unreadable(cause)) => {
                assert!(cause.to_string().contains(wanted), "{cause}");
            }
            other => panic!("{wanted}: {other:?}"),
        }
    }
    assert_eq!(
        verify(&name(&[set(&[value(ORGANIZATION, UTF8, b"system:masters")])])).unwrap(),
        None
    );
    assert_eq!(verify(&name(&[set(&[cn("")])])).unwrap(), None);
    // Certificates of another authority may have attributes of all kinds, and Kubernetes' UID is accepted there.
    let further = [uid("u-1"), set(&[value(UNKNOWN, UNIVERSAL, b"x"), value(UNIT, UTF8, b"y")])];
    let identity = verify(&node_and(&further)).unwrap().unwrap().identity;
    assert_eq!((identity.name.as_str(), identity.uid.as_str()), ("system:node:a", "u-1"));
    assert_eq!(identity.groups, ["system:nodes"]);
    assert!(identity.credential_id.starts_with("X509SHA256="), "{identity:?}");
}

#[test]
fn rejects_non_der_lengths() {
    let der = request(&node_and(&[]), &[]);
    assert_eq!(der[..2], [0x30, 0x81]);
    let length = der[2];
    for head in [
        vec![0x30, 0x82, 0, length],
        vec![0x30, 0x80],
        vec![0x3f, 0x81, length],
        vec![0x30, 0x88, 255],
    ] {
        let other = [&head[..], &der[3..]].concat();
        assert!(matches!(SigningRequest::from_der(other), Err(Error::MalformedRequest(_))));
    }
}

/// A generated attribute: kind, string type, text.
type GeneratedAttribute = (&'static [u8], u8, &'static str);

/// Reports whether a request parser accepts the text in this string type.
fn is_text(tag: u8, text: &str) -> bool {
    tag != UNIVERSAL && !text.contains('\0') && (text.is_ascii() || [UTF8, BMP, T61].contains(&tag))
}

fn bytes_of(tag: u8, text: &str) -> Vec<u8> {
    match tag {
        BMP => text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        T61 => text.chars().map(|c| c as u8).collect(),
        _ => text.as_bytes().to_vec(),
    }
}

fn generated_attribute() -> impl Strategy<Value = GeneratedAttribute> {
    let kind = prop_oneof![
        3 => Just(COMMON_NAME),
        4 => Just(ORGANIZATION),
        2 => prop::sample::select(vec![UNIT, SERIAL_NUMBER, EMAIL]),
        1 => prop::sample::select(vec![UID, UNKNOWN]),
    ];
    let tag =
        prop::sample::select(vec![UTF8, UTF8, PRINTABLE, PRINTABLE, IA5, T61, BMP, UNIVERSAL]);
    let texts = ["system:node:a", "system:nodes", "system:masters", "a", "j\u{e4}ne", "", "a\0b"];
    (kind, tag, prop::sample::select(texts.to_vec()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn authenticates_exactly_the_approved_contents(
        one_each in prop::collection::vec(generated_attribute(), 0..4),
        several in prop::collection::vec(prop::collection::vec(generated_attribute(), 1..3), 0..2),
        envelope in 0..8,
        attributes in 0..8,
    ) {
        let sets: Vec<Vec<GeneratedAttribute>> = one_each.into_iter().map(|one| vec![one]).chain(several).collect();
        let written: Vec<Vec<u8>> = sets
            .iter()
            .map(|made| {
                let encode = |(kind, tag, text): &GeneratedAttribute| {
                    value(kind, *tag, &bytes_of(*tag, text))
                };
                set(&made.iter().map(encode).collect::<Vec<_>>())
            })
            .collect();
        let extra = match attributes {
            0 => requested_attributes(&[(UNKNOWN, vec![])]),
            1 => requested_attributes(&[(CHALLENGE, element(UTF8, b"a"))]),
            _ => vec![],
        };
        let block = pem(&request(&name(&written), &extra));
        let text = match envelope {
            0 => format!("{block}{block}"),
            1 => format!("text\n{block}"),
            2 => format!("\n\n{block}\n\n"),
            3 => format!("text {block}"),
            _ => block,
        };
        let all = || sets.iter().flatten();
        let of = |wanted: &'static [u8]| all().filter(move |made| made.0 == wanted).map(|made| made.2);
        let read = |made: &&GeneratedAttribute| [COMMON_NAME, ORGANIZATION, UNIT, SERIAL_NUMBER].contains(&made.0);
        let good = of(COMMON_NAME).count() == 1
            && all().filter(read).all(|made| is_text(made.1, made.2))
            && !of(COMMON_NAME).chain(of(ORGANIZATION)).any(str::is_empty)
            && of(UID).chain(of(UNKNOWN)).count() == 0
            && sets.iter().all(|set| set.iter().all(|made| made.0 == set[0].0))
            && attributes > 0
            && ![0, 3].contains(&envelope);
        match outcome(&text) {
            Ok(identity) => {
                prop_assert!(good, "{sets:?} became {identity:?}");
                let mut groups: Vec<&str> = of(ORGANIZATION).collect();
                let mut signed = identity.groups.clone();
                groups.sort_unstable();
                signed.sort_unstable();
                prop_assert_eq!(of(COMMON_NAME).next(), Some(identity.name.as_str()));
                prop_assert_eq!(groups, signed);
            }
            Err(refusal) => prop_assert!(!good, "{sets:?} is refused: {refusal}"),
        }
    }
}
