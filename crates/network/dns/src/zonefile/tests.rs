use std::time::Instant;

use super::*;

const ZONE: &str = "\
$ORIGIN example.org.
@  3600 IN SOA sns.dns.icann.org. noc.dns.icann.org. (
       2017042745 ; serial
       7200 3600 1209600 300 )
   3600 IN NS a.iana-servers.net.
   NS ns
$TTL 1h30m
ns  IN A 192.0.2.53
www IN A     127.0.0.1
    IN AAAA  ::1
    TXT \"a; b\" c\\;d
alias CNAME www
out CNAME elsewhere.example.net.
dead CNAME missing
circle CNAME circle
*.wild A 192.0.2.7
host.deep.tree A 192.0.2.8
sub NS ns.sub
ns.sub A 192.0.2.54
mail MX 10 www
_sip._tcp SRV 0 5 5060 @
";

fn zone(text: &str) -> Result<ZoneData, ZoneFileError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("db.example.org");
    std::fs::write(&file, text).unwrap();
    ZoneData::read(&file, &Name::from_ascii("example.org.").unwrap())
}

fn show(found: &LookupResult) -> String {
    let texts = |records: &[Record]| {
        let text =
            |record: &Record| format!("{} {} {}", record.name, record.record_type(), record.data);
        records.iter().map(text).collect::<Vec<_>>().join(", ")
    };
    match found {
        LookupResult::Records(records) => texts(records),
        LookupResult::Alias { records, target } => format!("{} -> {target}", texts(records)),
        LookupResult::NoData(records) => format!("-{}", texts(records)),
        LookupResult::NoName(records) => format!("!{}", texts(records)),
        LookupResult::Delegation(records) => format!("^{}", texts(records)),
    }
}

#[test]
fn answers_names_aliases_wildcards_and_delegations() {
    use RecordType::{A, AAAA, MX, NS, SRV, TXT};
    let zone = zone(ZONE).unwrap();
    assert_eq!((zone.serial(), zone.negative_soa().ttl), (Some(2_017_042_745), 300));
    for (name, kind, expected) in [
        ("www", A, "www.example.org. A 127.0.0.1"),
        ("WWW", AAAA, "WWW.example.org. AAAA ::1"),
        ("www", TXT, "www.example.org. TXT a; bc;d"),
        ("www", MX, "-"),
        ("alias", A, "alias.example.org. CNAME www.example.org., www.example.org. A 127.0.0.1"),
        ("out", A, "out.example.org. CNAME elsewhere.example.net. -> elsewhere.example.net."),
        ("dead", A, "!dead.example.org. CNAME missing.example.org."),
        ("any.wild", A, "any.wild.example.org. A 192.0.2.7"),
        ("any.wild", MX, "-"),
        ("wild", A, "-"),
        ("deep.tree", A, "-"),
        ("tree", A, "-"),
        ("none", A, "!"),
        ("none.www", A, "!"),
        ("x.sub", A, "^sub.example.org. NS ns.sub.example.org."),
        ("mail", MX, "mail.example.org. MX 10 www.example.org."),
        ("_sip._tcp", SRV, "_sip._tcp.example.org. SRV 0 5 5060 example.org."),
    ] {
        let name = Name::from_ascii(format!("{name}.example.org.")).unwrap();
        assert_eq!(show(&zone.find(&name, kind)), expected, "{name} {kind}");
    }
    let circle = zone.find(&Name::from_ascii("circle.example.org.").unwrap(), A);
    assert!(matches!(circle, LookupResult::Records(records) if records.len() == MAX_ALIASES));
    let apex = Name::from_ascii("example.org.").unwrap();
    let LookupResult::Records(servers) = zone.find(&apex, NS) else { panic!() };
    assert_eq!(zone.addresses(&servers).len(), 1);
    let all = zone.transfer();
    assert_eq!(
        (all.len(), all[0].record_type(), all.last().unwrap().record_type()),
        (18, RecordType::SOA, RecordType::SOA)
    );
}

#[test]
fn reports_errors_by_line() {
    for (text, line, reason) in [
        ("@ 60 SOA a b 1 2 3 4 5\nx 60 A 1.2.3\n", 2, "the data of A"),
        ("@ 60 SOA a b (1 2 3 4 5\n", 1, "not closed"),
        ("@ 60 SOA a b 1 2 3 4 5)\n", 1, "closes none"),
        ("\nx 60 CH A 1.2.3.4\n", 2, "class"),
        ("$GENERATE 1-1000000000 a$ A 1.2.3.4\n", 1, "$GENERATE is not supported"),
        ("x 60 RRSIG A\n", 1, "RRSIG"),
        ("x 60 FROB A\n", 1, "\"FROB\" is not a record type"),
        ("x A 1.2.3.4\n", 1, "a record needs"),
        ("  60 A 1.2.3.4\n", 1, "a record needs"),
        ("x 60 A 1.2.3.4\n", 1, "no SOA"),
        ("$INCLUDE none\n", 1, "No such file"),
        ("$INCLUDE db.example.org\n", 1, "too many"),
        ("$INCLUDE db.example.org\n$INCLUDE db.example.org\n", 1, "too many"),
        ("x 60 TXT \"a", 1, "not closed"),
        ("x 60 TXT a\\", 1, "not closed"),
        (&format!("{} 60 A 1.2.3.4", "a.".repeat(200)), 1, "is not a name"),
    ] {
        let error = zone(text).unwrap_err();
        assert!(error.line == line && error.to_string().contains(reason), "{text:?}: {error}");
    }
}

#[test]
fn includes_files_with_their_own_origin() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("db");
    std::fs::write(
        folder.path().join("part"),
        "a A 192.0.2.1\n$ORIGIN elsewhere.\nb A 192.0.2.2\n",
    )
    .unwrap();
    std::fs::write(&file, "@ 60 SOA a b 1 2 3 4 5\n$INCLUDE part sub\nc A 192.0.2.3\n").unwrap();
    let zone = ZoneData::read(&file, &Name::from_ascii("example.org.").unwrap()).unwrap();
    for name in ["a.sub.example.org.", "c.example.org."] {
        assert!(
            matches!(
                zone.find(&Name::from_ascii(name).unwrap(), RecordType::A),
                LookupResult::Records(_)
            ),
            "{name}"
        );
    }
}

#[test]
fn parses_record_of_template() {
    let origin = Name::root();
    let record = parse_record("ip-1.example 60 IN A 192.0.2.1", &origin).unwrap();
    assert_eq!((record.name.to_string().as_str(), record.ttl), ("ip-1.example.", 60));
    let soa =
        parse_record("invalid. 60 IN SOA ns.invalid. hostmaster.invalid. (1 60 60 60 60)", &origin)
            .unwrap();
    assert_eq!(soa.data.to_string(), "ns.invalid. hostmaster.invalid. 1 60 60 60 60");
    for bad in ["", "x", "x A 1.2.3.4\ny A 1.2.3.4", "x 60 IN A ::1", "$INCLUDE /etc/passwd"] {
        assert!(parse_record(bad, &origin).is_err(), "{bad:?}");
    }
}

#[test]
fn parses_units_of_ttls() {
    for (text, expected) in [
        ("60", Some(60)),
        ("1h30m", Some(5400)),
        ("1W", Some(604_800)),
        ("", None),
        ("h", None),
        ("99999999999", None),
        ("A", None),
    ] {
        assert_eq!(parse_ttl(text), expected, "{text}");
    }
}

#[test]
fn reads_large_zone_in_linear_time() {
    let soa = "@ 60 SOA a b 1 2 3 4 5\n";
    let time = |lines: usize| {
        // Many records of one name, and deep names.
        let many: String = (0..lines)
            .map(|n| format!("www A 10.{}.{}.{}\n", n >> 16, n >> 8 & 255, n & 255))
            .collect();
        let deep: String =
            (0..lines / 100).map(|n| format!("{}x{n} A 192.0.2.1\n", "a.".repeat(100))).collect();
        let start = Instant::now();
        zone(&format!("{soa}{many}{deep}")).unwrap();
        start.elapsed()
    };
    let small = time(4000).max(std::time::Duration::from_millis(5));
    assert!(time(40_000) < small * 60);
}
