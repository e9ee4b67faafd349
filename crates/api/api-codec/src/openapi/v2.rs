//! The field numbers of OpenAPI v2's messages.

use serde_json::Value;

use super::message::{Form, Message};

pub(super) static DOCUMENT: Message = Message::new(
    &[
        ("swagger", 1, Form::Text),
        ("info", 2, Form::Message(&INFO)),
        ("host", 3, Form::Text),
        ("basePath", 4, Form::Text),
        ("schemes", 5, TEXTS),
        ("consumes", 6, TEXTS),
        ("produces", 7, TEXTS),
        ("paths", 8, Form::Message(&PATHS)),
        ("definitions", 9, Form::Message(&SCHEMAS)),
        ("parameters", 10, Form::Message(&PARAMETERS)),
        ("security", 12, Form::Each(&Form::Message(&SECURITY))),
        ("securityDefinitions", 13, Form::Message(&SECURITY_DEFINITIONS)),
    ],
    16,
);

const TEXTS: Form = Form::Each(&Form::Text);

static INFO: Message = Message::new(
    &[("title", 1, Form::Text), ("version", 2, Form::Text), ("description", 3, Form::Text)],
    7,
);

static PATHS: Message =
    Message { fields: &[], extensions: 1, rest: Some((2, Form::Message(&PATH_ITEM))) };

const OPERATION_FORM: Form = Form::Message(&OPERATION);
static PATH_ITEM: Message = Message::new(
    &[
        ("$ref", 1, Form::Text),
        ("get", 2, OPERATION_FORM),
        ("put", 3, OPERATION_FORM),
        ("post", 4, OPERATION_FORM),
        ("delete", 5, OPERATION_FORM),
        ("options", 6, OPERATION_FORM),
        ("head", 7, OPERATION_FORM),
        ("patch", 8, OPERATION_FORM),
        ("parameters", 9, Form::Each(&PARAMETER_OR_REFERENCE)),
    ],
    10,
);

static OPERATION: Message = Message::new(
    &[
        ("tags", 1, TEXTS),
        ("summary", 2, Form::Text),
        ("description", 3, Form::Text),
        ("operationId", 5, Form::Text),
        ("produces", 6, TEXTS),
        ("consumes", 7, TEXTS),
        ("parameters", 8, Form::Each(&PARAMETER_OR_REFERENCE)),
        ("responses", 9, Form::Message(&RESPONSES)),
        ("schemes", 10, TEXTS),
        ("deprecated", 11, Form::Flag),
        ("security", 12, Form::Each(&Form::Message(&SECURITY))),
    ],
    13,
);

fn is_reference(value: &Value) -> bool {
    value.get("$ref").is_some()
}

fn is_any(_: &Value) -> bool {
    true
}

static REFERENCE: Message =
    Message::new(&[("$ref", 1, Form::Text), ("description", 2, Form::Text)], 0);

static PARAMETER_OR_REFERENCE: Form =
    Form::OneOf(&[(is_reference, 2, Form::Message(&REFERENCE)), (is_any, 1, PARAMETER)]);

const PARAMETER: Form = Form::OneOf(&[
    (|p| p["in"] == "body", 1, Form::Message(&BODY_PARAMETER)),
    (
        is_any,
        2,
        Form::OneOf(&[
            (|p| p["in"] == "query", 3, Form::Message(&QUERY_PARAMETER)),
            (|p| p["in"] == "path", 4, Form::Message(&PATH_PARAMETER)),
        ]),
    ),
]);
static PARAMETERS: Message = Message::map(PARAMETER);

static BODY_PARAMETER: Message = Message::new(
    &[
        ("description", 1, Form::Text),
        ("name", 2, Form::Text),
        ("in", 3, Form::Text),
        ("required", 4, Form::Flag),
        ("schema", 5, Form::Message(&SCHEMA)),
    ],
    6,
);

static QUERY_PARAMETER: Message = Message::new(
    &[
        ("required", 1, Form::Flag),
        ("in", 2, Form::Text),
        ("description", 3, Form::Text),
        ("name", 4, Form::Text),
        ("type", 6, Form::Text),
        ("format", 7, Form::Text),
        ("uniqueItems", 20, Form::Flag),
    ],
    23,
);

static PATH_PARAMETER: Message = Message::new(
    &[
        ("required", 1, Form::Flag),
        ("in", 2, Form::Text),
        ("description", 3, Form::Text),
        ("name", 4, Form::Text),
        ("type", 5, Form::Text),
        ("format", 6, Form::Text),
        ("uniqueItems", 19, Form::Flag),
    ],
    22,
);

static RESPONSES: Message = Message {
    fields: &[],
    extensions: 2,
    rest: Some((
        1,
        Form::OneOf(&[
            (is_reference, 2, Form::Message(&REFERENCE)),
            (is_any, 1, Form::Message(&RESPONSE)),
        ]),
    )),
};

static RESPONSE: Message = Message::new(
    &[("description", 1, Form::Text), ("schema", 2, Form::Within(1, &Form::Message(&SCHEMA)))],
    5,
);

static SECURITY: Message = Message::map(Form::Within(1, &TEXTS));
static SECURITY_DEFINITIONS: Message =
    Message::map(Form::OneOf(&[(|d| d["type"] == "apiKey", 2, Form::Message(&API_KEY))]));
static API_KEY: Message = Message::new(
    &[
        ("type", 1, Form::Text),
        ("name", 2, Form::Text),
        ("in", 3, Form::Text),
        ("description", 4, Form::Text),
    ],
    5,
);

static SCHEMAS: Message = Message::map(Form::Message(&SCHEMA));
static SCHEMA: Message = Message::new(
    &[
        ("$ref", 1, Form::Text),
        ("format", 2, Form::Text),
        ("title", 3, Form::Text),
        ("description", 4, Form::Text),
        ("default", 5, Form::Any),
        ("multipleOf", 6, Form::Double),
        ("maximum", 7, Form::Double),
        ("exclusiveMaximum", 8, Form::Flag),
        ("minimum", 9, Form::Double),
        ("exclusiveMinimum", 10, Form::Flag),
        ("maxLength", 11, Form::Integer),
        ("minLength", 12, Form::Integer),
        ("pattern", 13, Form::Text),
        ("maxItems", 14, Form::Integer),
        ("minItems", 15, Form::Integer),
        ("uniqueItems", 16, Form::Flag),
        ("maxProperties", 17, Form::Integer),
        ("minProperties", 18, Form::Integer),
        ("required", 19, TEXTS),
        ("enum", 20, Form::Each(&Form::Any)),
        (
            "additionalProperties",
            21,
            Form::OneOf(&[(Value::is_boolean, 2, Form::Flag), (is_any, 1, Form::Message(&SCHEMA))]),
        ),
        ("type", 22, Form::Within(1, &TEXTS)),
        ("items", 23, Form::Within(1, &Form::Each(&Form::Message(&SCHEMA)))),
        ("allOf", 24, Form::Each(&Form::Message(&SCHEMA))),
        ("properties", 25, Form::Message(&SCHEMAS)),
        ("discriminator", 26, Form::Text),
        ("readOnly", 27, Form::Flag),
        ("externalDocs", 29, Form::Message(&EXTERNAL_DOCS)),
        ("example", 30, Form::Any),
    ],
    31,
);
static EXTERNAL_DOCS: Message =
    Message::new(&[("description", 1, Form::Text), ("url", 2, Form::Text)], 3);
