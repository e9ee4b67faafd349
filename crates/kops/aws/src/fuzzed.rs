//! Fuzzes the parser of answers in AWS' XML protocols.

use http::StatusCode;
use serde_json::Value;

use crate::{
    endpoint::ServiceEndpoint, error::Error, operation::Operation, request::parse_response,
};

/// The length of all names and texts of an answer.
fn length(value: &Value) -> usize {
    match value {
        Value::Object(members) => members.iter().map(|(name, one)| name.len() + length(one)).sum(),
        Value::Array(items) => items.iter().map(length).sum(),
        Value::String(text) => text.len(),
        other => panic!("{other} is not a value of XML"),
    }
}

#[test]
fn xml_answers() {
    let instances = b"<?xml version=\"1.0\"?><DescribeInstancesResponse xmlns=\"x\"><requestId>a</requestId>\
        <reservationSet><item><instancesSet><item><instanceId>i-1</instanceId><tagSet><item><key>k&lt;</key>\
        <value>&#x41;</value></item><item><key/></item></tagSet></item></instancesSet></item></reservationSet>\
        <nextToken/></DescribeInstancesResponse>";
    let error = b"<Response><Errors><Error><Code>InvalidVpcID.NotFound</Code><Message>a &amp; b</Message></Error>\
        </Errors></Response>";
    let batch =
        b"<InvalidChangeBatch><Messages><Message>a</Message></Messages></InvalidChangeBatch>";
    let seeds: [&[u8]; 3] = [instances, error, batch];
    let protocol = ServiceEndpoint::of("ec2", "r", None).unwrap().protocol;
    let operation = Operation::find("ec2", "DescribeInstances").unwrap();
    fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "xml-answers", &seeds, |input| {
        match parse_response(operation, protocol, StatusCode::OK, input) {
            // Nothing in a document makes its content larger. A byte that is not UTF-8 becomes three in a name.
            Ok(answer) => assert!(length(&answer) <= 3 * input.len()),
            Err(Error::InvalidAnswer { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        let refused = parse_response(operation, protocol, StatusCode::BAD_REQUEST, input);
        let Err(Error::Refused { code, message, .. }) = refused else { panic!("{refused:?}") };
        for text in [code, message] {
            assert!(text.chars().count() <= 500 && !text.contains(char::is_control), "{text:?}");
        }
    });
}
