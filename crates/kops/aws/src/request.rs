//! Converts calls to HTTP requests, and answers to trees.

use http::{HeaderName, Method, StatusCode, header};
use serde_json::{Map, Value};

use crate::{
    endpoint::Protocol,
    error::Error,
    operation::Operation,
    xml::{elements, tree, written},
};

/// The deepest nesting in an error's text.
const DEEPEST: usize = 8;
const TARGET: HeaderName = HeaderName::from_static("x-amz-target");
/// The error of changes to DNS records that are invalid.
const INVALID_BATCH: &str = "InvalidChangeBatch";
const SPACE: &str = "https://route53.amazonaws.com/doc/2013-04-01/";

/// The parts of an HTTP request.
#[derive(Debug)]
pub(crate) struct HttpCall {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: Vec<(HeaderName, String)>,
    pub(crate) body: String,
}

/// Builds the request of a call. Parameters that are not in the table are rejected.
pub(crate) fn build_call(
    operation: &Operation,
    protocol: Protocol,
    parameters: &Value,
) -> Result<HttpCall, Error> {
    let unknown = |parameter: &str| Error::Unknown {
        operation: operation.name.to_owned(),
        parameter: parameter.to_owned(),
    };
    if let Protocol::Xml = protocol {
        return xml(operation, parameters).ok_or_else(|| unknown("its parameters"));
    }
    let mut pairs = Vec::new();
    flatten(parameters, "", matches!(protocol, Protocol::Query(_)), &mut pairs);
    // A JSON parameter's nested fields are accepted if the table has the parameter itself.
    if let Some((name, _)) = pairs.iter().find(|(name, _)| !operation.takes(&plain(name))) {
        let free = matches!(protocol, Protocol::Json(..))
            && name.split_once('.').is_some_and(|(map, _)| operation.takes(map));
        if !free {
            return Err(unknown(name));
        }
    }
    let post = |path: &str, headers: Vec<(HeaderName, String)>, body: String| {
        Ok(HttpCall { method: Method::POST, path: path.to_owned(), headers, body })
    };
    match protocol {
        Protocol::Ec2(version) | Protocol::Query(version) => {
            let first = [("Action", operation.name), ("Version", version)];
            let first = first.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let form = first.into_iter().chain(pairs);
            let form = form.map(|(name, value)| format!("{name}={}", client::escape(&value)));
            let kind = "application/x-www-form-urlencoded; charset=utf-8".to_owned();
            let body = form.collect::<Vec<_>>().join("&");
            post("/", vec![(header::CONTENT_TYPE, kind)], body)
        }
        Protocol::Json(version, name) => {
            let kind = format!("application/x-amz-json-{version}");
            let target = format!("{name}.{}", operation.name);
            let headers = vec![(header::CONTENT_TYPE, kind), (TARGET, target)];
            // A call without parameters has an empty object.
            let body = if parameters.is_null() { "{}".to_owned() } else { parameters.to_string() };
            post("/", headers, body)
        }
        Protocol::Xml => Err(unknown("its protocol")),
    }
}

/// Returns a parameter's name without the numbers of lists.
fn plain(name: &str) -> String {
    let numbered = |part: &&str| *part != "member" && part.parse::<usize>().is_err();
    name.split('.').filter(numbered).collect::<Vec<_>>().join(".")
}

fn flatten(value: &Value, name: &str, members: bool, pairs: &mut Vec<(String, String)>) {
    let below = |part: &str| match name {
        "" => part.to_owned(),
        name => format!("{name}.{part}"),
    };
    match value {
        Value::Null => {}
        Value::Object(object) => {
            for (part, value) in object {
                flatten(value, &below(part), members, pairs);
            }
        }
        Value::Array(items) => {
            for (item, number) in items.iter().zip(1..) {
                let part = if members { format!("member.{number}") } else { number.to_string() };
                flatten(item, &below(&part), members, pairs);
            }
        }
        Value::String(text) => pairs.push((name.to_owned(), text.clone())),
        other => pairs.push((name.to_owned(), other.to_string())),
    }
}

/// Builds a request with a path of its own. `Id` is part of the path; a reading operation sends the rest as its query.
fn xml(operation: &Operation, parameters: &Value) -> Option<HttpCall> {
    let mut http = operation.http.split(' ');
    let (method, path) = (http.next()?, http.next()?);
    let mut others = parameters.as_object().cloned().unwrap_or_default();
    let id = others.remove("Id");
    let id = id.as_ref().and_then(Value::as_str).unwrap_or_default();
    let path = path.replace("{Id}", &client::escape(id));
    if let Some(root) = http.next() {
        let mut names = Vec::new();
        flatten(&Value::Object(others.clone()), "", false, &mut names);
        if !names.iter().all(|(name, _)| operation.takes(&plain(name))) {
            return None;
        }
        let inner: String = others.iter().map(|(name, value)| written(name, value)).collect();
        let body = format!("<{root} xmlns=\"{SPACE}\">{inner}</{root}>");
        let headers = vec![(header::CONTENT_TYPE, "application/xml".to_owned())];
        return Some(HttpCall { method: Method::POST, path, headers, body });
    }
    let query = |(name, value): (&String, &Value)| {
        let text = value.as_str().filter(|_| operation.takes(name))?;
        Some(format!("{name}={}", client::escape(text)))
    };
    let query = others.iter().map(query).collect::<Option<Vec<_>>>()?.join("&");
    let path = if query.is_empty() { path } else { format!("{path}?{query}") };
    let method = method.parse().ok()?;
    Some(HttpCall { method, path, headers: Vec::new(), body: String::new() })
}

/// Parses a response, or returns its error.
pub(crate) fn parse_response(
    operation: &Operation,
    protocol: Protocol,
    status: StatusCode,
    body: &[u8],
) -> Result<Value, Error> {
    if !status.is_success() {
        let (code, message) = problem(protocol, body);
        let (operation, status) = (operation.name.to_owned(), status.as_u16());
        return Err(Error::Refused { operation, status, code, message });
    }
    let nonsense = |cause| Error::InvalidAnswer { operation: operation.name.to_owned(), cause };
    if let Protocol::Json(..) = protocol {
        return match body {
            [] => Ok(Value::Object(Map::new())),
            body => serde_json::from_slice(body).map_err(|_| nonsense("it is not JSON")),
        };
    }
    let (root, mut value) = tree(body).map_err(nonsense)?;
    if root != format!("{}Response", operation.name) {
        return Err(nonsense("it is the answer of another operation"));
    }
    match value.get_mut(format!("{}Result", operation.name)) {
        Some(result) => Ok(result.take()),
        None => Ok(value),
    }
}

/// Returns the code and the message of an error answer.
fn problem(protocol: Protocol, body: &[u8]) -> (String, String) {
    let (mut code, mut message) = (String::new(), String::new());
    if let Protocol::Json(..) = protocol {
        let tree: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |names: [&str; 2]| {
            let found = names.iter().find_map(|name| tree.get(name).and_then(Value::as_str));
            found.unwrap_or_default().to_owned()
        };
        (code, message) = (text(["__type", "code"]), text(["message", "Message"]));
        code = code.rsplit('#').next().unwrap_or_default().to_owned();
    } else {
        // Of a broken answer, use the part before the break.
        let _ = elements(body, DEEPEST, |path, text| match path {
            [.., of, own] if of == "Error" && own == "Code" => text.clone_into(&mut code),
            [.., of, own] if of == "Error" && own == "Message" => text.clone_into(&mut message),
            // Route 53 has another form for this error.
            [root, of, own] if root == INVALID_BATCH && of == "Messages" && own == "Message" => {
                INVALID_BATCH.clone_into(&mut code);
                text.clone_into(&mut message);
            }
            _ => {}
        });
    }
    let tidy = |text: String| text.chars().filter(|c| !c.is_control()).take(500).collect();
    (tidy(code), tidy(message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::endpoint::ServiceEndpoint;

    fn protocol(service: &str) -> Option<Protocol> {
        Some(ServiceEndpoint::of(service, "r", None)?.protocol)
    }

    fn sent(service: &str, name: &str, parameters: Value) -> Result<HttpCall, Error> {
        let operation = Operation::find(service, name).unwrap();
        build_call(operation, protocol(service).unwrap(), &parameters)
    }

    #[test]
    fn encodes_calls_in_each_protocol() {
        let filter = json!({"Filter": [{"Name": "tag:a b", "Value": ["x", "y&z"]}]});
        let body = sent("ec2", "DescribeVpcs", filter).unwrap().body;
        assert_eq!(
            body,
            "Action=DescribeVpcs&Version=2016-11-15&Filter.1.Name=tag%3Aa%20b&Filter.1.Value.1=x&Filter.1.Value.2=y%26z"
        );
        let tags = json!({"RoleName": "r", "Tags": [{"Key": "k", "Value": ""}]});
        let body = sent("iam", "TagRole", tags).unwrap().body;
        assert!(body.ends_with("&RoleName=r&Tags.member.1.Key=k&Tags.member.1.Value="), "{body}");
        let wire = sent("sqs", "CreateQueue", json!({"QueueName": "q", "tags": {"a.b/c": "d"}}));
        let wire = wire.unwrap();
        assert!(wire.headers.contains(&(TARGET, "AmazonSQS.CreateQueue".to_owned())));
        assert_eq!(wire.body, r#"{"QueueName":"q","tags":{"a.b/c":"d"}}"#);
        assert_eq!(sent("events", "ListRules", Value::Null).unwrap().body, "{}");
        let wire = sent("route53", "ListResourceRecordSets", json!({"Id": "Z/1", "name": "a.b"}));
        assert_eq!(wire.unwrap().path, "/2013-04-01/hostedzone/Z%2F1/rrset?name=a.b");
        let vpc = json!({"Id": "Z1", "VPC": {"VPCId": "v<", "VPCRegion": "r"}});
        let wire = sent("route53", "AssociateVPCWithHostedZone", vpc).unwrap();
        assert!(wire.body.contains(
            "Request xmlns=\"https://route53.amazonaws.com/doc/2013-04-01/\"><VPC><VPCId>v&lt;<"
        ));
    }

    #[test]
    fn rejects_parameters_not_in_the_table() {
        for (service, name, parameters) in [
            ("ec2", "CreateVpc", json!({"CidrBlok": "10.0.0.0/8"})),
            ("ec2", "DescribeVpcs", json!({"Filter": [{"Nam": "x"}]})),
            ("autoscaling", "PutLifecycleHook", json!({"Hook": "x"})),
            ("events", "PutRule", json!({"Nme": "x"})),
            ("route53", "ListResourceRecordSets", json!({"Id": "Z", "nam": "x"})),
            ("route53", "AssociateVPCWithHostedZone", json!({"Id": "Z", "VPC": {"Vpc": "x"}})),
        ] {
            assert!(
                matches!(sent(service, name, parameters), Err(Error::Unknown { .. })),
                "{name}"
            );
        }
    }

    #[test]
    fn parses_answers_and_error_codes() {
        let operation = Operation::find("autoscaling", "DescribeAutoScalingGroups").unwrap();
        let query = protocol("autoscaling").unwrap();
        let read = |status: u16, text: &str| {
            parse_response(operation, query, StatusCode::from_u16(status).unwrap(), text.as_bytes())
        };
        let text = "<DescribeAutoScalingGroupsResponse><DescribeAutoScalingGroupsResult><NextToken>a</NextToken>\
            </DescribeAutoScalingGroupsResult></DescribeAutoScalingGroupsResponse>";
        assert_eq!(read(200, text).unwrap(), json!({"NextToken": "a"}));
        for wrong in ["", "<html/>", &text[..text.len() - 1], "<!DOCTYPE a><a/>"] {
            assert!(matches!(read(200, wrong), Err(Error::InvalidAnswer { .. })), "{wrong}");
        }
        let text = "<ErrorResponse><Error><Type>Sender</Type><Code>Throttling</Code><Message>Rate\n exceeded</Message></Error></ErrorResponse>";
        let error = read(400, text).unwrap_err();
        assert!(
            error.is_throttled()
                && error.to_string().ends_with("is 400, Throttling: Rate exceeded")
        );
        let text = "<Response><Errors><Error><Code>InvalidVpcID.NotFound</Code><Message/></Error></Errors></Response>";
        assert!(read(400, text).unwrap_err().is_absent());
        // AWS has no code of its own for a lifecycle hook that does not exist.
        let delete = Operation::find("autoscaling", "DeleteLifecycleHook").unwrap();
        for (message, absent) in
            [("No Lifecycle Hook found with name a", true), ("Bad name", false)]
        {
            let text = format!(
                "<ErrorResponse><Error><Code>ValidationError</Code><Message>{message}</Message></Error></ErrorResponse>"
            );
            let error = parse_response(delete, query, StatusCode::BAD_REQUEST, text.as_bytes());
            assert_eq!(error.unwrap_err().is_absent(), absent, "{message}");
        }
        let records = Operation::find("route53", "ChangeResourceRecordSets").unwrap();
        let text =
            b"<InvalidChangeBatch><Messages><Message>a</Message></Messages></InvalidChangeBatch>";
        let xml = protocol("route53").unwrap();
        let error = parse_response(records, xml, StatusCode::BAD_REQUEST, text).unwrap_err();
        assert_eq!(error.code(), "InvalidChangeBatch");
        let sqs = Operation::find("sqs", "GetQueueUrl").unwrap();
        let text = br#"{"__type":"com.amazonaws.sqs#QueueDoesNotExist","message":"gone"}"#;
        let error = parse_response(sqs, protocol("sqs").unwrap(), StatusCode::BAD_REQUEST, text)
            .unwrap_err();
        assert_eq!(error.code(), "QueueDoesNotExist");
        assert!(error.is_absent());
    }
}
