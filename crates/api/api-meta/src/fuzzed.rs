//! Fuzz tests of parsers: a text that parses must keep its meaning when it is printed and parsed again.

use std::{fmt::Display, str::FromStr};

use crate::{
    field_selector::FieldSelector, quantity::Quantity, selector::Selector, time::Timestamp,
};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn check_round_trip<T: FromStr + Display + PartialEq + std::fmt::Debug>(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(parsed) = text.parse::<T>() else { return };
    let written = parsed.to_string();
    match written.parse::<T>() {
        Ok(back) => assert_eq!(back, parsed, "{text:?} as {written:?}"),
        Err(_) => panic!("{text:?} is written as {written:?}, which does not parse"),
    }
}

#[test]
fn round_trips_label_selectors() {
    fuzz::fuzz(
        HERE,
        "label-selector",
        &[b"a in (b,c),!d,e=f", b"x/y notin (),z>3,w"],
        check_round_trip::<Selector>,
    );
}

#[test]
fn parses_field_selectors_without_panic() {
    fuzz::fuzz(HERE, "field-selector", &[b"metadata.name=a,spec.x!=b\\,c"], |input| {
        if let Ok(text) = std::str::from_utf8(input) {
            let _ = text.parse::<FieldSelector>();
        }
    });
}

#[test]
fn round_trips_quantities() {
    let seeds: [&[u8]; 5] = [b"1.5Gi", b"100m", b"-3e9", b"0.000000001", b"12E"];
    fuzz::fuzz(HERE, "quantity", &seeds, check_round_trip::<Quantity>);
}

#[test]
fn parses_times_without_panic() {
    let seeds: [&[u8]; 2] = [b"2026-01-02T03:04:05Z", b"1999-12-31T23:59:59.123456+01:30"];
    fuzz::fuzz(HERE, "time", &seeds, |input| {
        if let Ok(text) = std::str::from_utf8(input) {
            let _ = text.parse::<Timestamp>();
        }
    });
}
