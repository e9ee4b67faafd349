//! The field numbers of OpenAPI v3's messages.

use serde_json::Value;

use super::message::{Case, Form, Message};

pub(super) static DOCUMENT: Message = Message::new(
    &[
        ("openapi", 1, Form::Text),
        ("info", 2, Form::Message(&INFO)),
        ("paths", 4, Form::Message(&PATHS)),
        ("components", 5, Form::Message(&COMPONENTS)),
        ("security", 6, Form::Each(&Form::Message(&SECURITY))),
    ],
    9,
);

const TEXTS: Form = Form::Each(&Form::Text);

static INFO: Message = Message::new(
    &[("title", 1, Form::Text), ("description", 2, Form::Text), ("version", 6, Form::Text)],
    7,
);

static COMPONENTS: Message = Message::new(
    &[
        ("schemas", 1, Form::Message(&SCHEMAS)),
        ("securitySchemes", 7, Form::Message(&SECURITY_SCHEMES)),
    ],
    10,
);

static SECURITY: Message = Message::map(Form::Within(1, &TEXTS));
static SECURITY_SCHEMES: Message = Message::map(Form::OneOf(&[
    (is_reference, 2, Form::Message(&REFERENCE)),
    (is_any, 1, Form::Message(&SECURITY_SCHEME)),
]));
static SECURITY_SCHEME: Message = Message::new(
    &[
        ("type", 1, Form::Text),
        ("description", 2, Form::Text),
        ("name", 3, Form::Text),
        ("in", 4, Form::Text),
        ("scheme", 5, Form::Text),
    ],
    9,
);

fn is_reference(value: &Value) -> bool {
    value.get("$ref").is_some()
}

fn is_any(_: &Value) -> bool {
    true
}

static REFERENCE: Message =
    Message::new(&[("$ref", 1, Form::Text), ("description", 3, Form::Text)], 0);

static PATHS: Message =
    Message { fields: &[], extensions: 2, rest: Some((1, Form::Message(&PATH_ITEM))) };

const OPERATION_FORM: Form = Form::Message(&OPERATION);
static PATH_ITEM: Message = Message::new(
    &[
        ("$ref", 1, Form::Text),
        ("summary", 2, Form::Text),
        ("description", 3, Form::Text),
        ("get", 4, OPERATION_FORM),
        ("put", 5, OPERATION_FORM),
        ("post", 6, OPERATION_FORM),
        ("delete", 7, OPERATION_FORM),
        ("options", 8, OPERATION_FORM),
        ("head", 9, OPERATION_FORM),
        ("patch", 10, OPERATION_FORM),
        ("parameters", 13, Form::Each(&PARAMETER_OR_REFERENCE)),
    ],
    14,
);

static OPERATION: Message = Message::new(
    &[
        ("tags", 1, TEXTS),
        ("summary", 2, Form::Text),
        ("description", 3, Form::Text),
        ("operationId", 5, Form::Text),
        ("parameters", 6, Form::Each(&PARAMETER_OR_REFERENCE)),
        (
            "requestBody",
            7,
            Form::OneOf(&[
                (is_reference, 2, Form::Message(&REFERENCE)),
                (is_any, 1, Form::Message(&REQUEST_BODY)),
            ]),
        ),
        ("responses", 8, Form::Message(&RESPONSES)),
        ("deprecated", 10, Form::Flag),
    ],
    13,
);

static PARAMETER_OR_REFERENCE: Form = Form::OneOf(&[
    (is_reference, 2, Form::Message(&REFERENCE)),
    (is_any, 1, Form::Message(&PARAMETER)),
]);
static PARAMETER: Message = Message::new(
    &[
        ("name", 1, Form::Text),
        ("in", 2, Form::Text),
        ("description", 3, Form::Text),
        ("required", 4, Form::Flag),
        ("schema", 10, Form::OneOf(&SCHEMA_OR_REFERENCE)),
    ],
    14,
);

static REQUEST_BODY: Message = Message::new(
    &[
        ("description", 1, Form::Text),
        ("content", 2, Form::Message(&MEDIA_TYPES)),
        ("required", 3, Form::Flag),
    ],
    4,
);
static MEDIA_TYPES: Message = Message::map(Form::Message(&MEDIA_TYPE));
static MEDIA_TYPE: Message = Message::new(&[("schema", 1, Form::OneOf(&SCHEMA_OR_REFERENCE))], 5);

static RESPONSES: Message = Message {
    fields: &[],
    extensions: 3,
    rest: Some((
        2,
        Form::OneOf(&[
            (is_reference, 2, Form::Message(&REFERENCE)),
            (is_any, 1, Form::Message(&RESPONSE)),
        ]),
    )),
};
static RESPONSE: Message =
    Message::new(&[("description", 1, Form::Text), ("content", 3, Form::Message(&MEDIA_TYPES))], 5);

static SCHEMA_OR_REFERENCE: [Case; 2] =
    [(is_reference, 2, Form::Message(&REFERENCE)), (is_any, 1, Form::Message(&SCHEMA))];
static SCHEMAS: Message = Message::map(Form::OneOf(&SCHEMA_OR_REFERENCE));
static SCHEMA: Message = Message::new(
    &[
        ("nullable", 1, Form::Flag),
        ("readOnly", 3, Form::Flag),
        ("writeOnly", 4, Form::Flag),
        ("externalDocs", 6, Form::Message(&EXTERNAL_DOCS)),
        ("example", 7, Form::Any),
        ("deprecated", 8, Form::Flag),
        ("title", 9, Form::Text),
        ("multipleOf", 10, Form::Double),
        ("maximum", 11, Form::Double),
        ("exclusiveMaximum", 12, Form::Flag),
        ("minimum", 13, Form::Double),
        ("exclusiveMinimum", 14, Form::Flag),
        ("maxLength", 15, Form::Integer),
        ("minLength", 16, Form::Integer),
        ("pattern", 17, Form::Text),
        ("maxItems", 18, Form::Integer),
        ("minItems", 19, Form::Integer),
        ("uniqueItems", 20, Form::Flag),
        ("maxProperties", 21, Form::Integer),
        ("minProperties", 22, Form::Integer),
        ("required", 23, TEXTS),
        ("enum", 24, Form::Each(&Form::Any)),
        ("type", 25, Form::Text),
        ("allOf", 26, Form::Each(&Form::OneOf(&SCHEMA_OR_REFERENCE))),
        ("oneOf", 27, Form::Each(&Form::OneOf(&SCHEMA_OR_REFERENCE))),
        ("anyOf", 28, Form::Each(&Form::OneOf(&SCHEMA_OR_REFERENCE))),
        ("not", 29, Form::Message(&SCHEMA)),
        ("items", 30, Form::Within(1, &Form::Each(&Form::OneOf(&SCHEMA_OR_REFERENCE)))),
        ("properties", 31, Form::Message(&SCHEMAS)),
        (
            "additionalProperties",
            32,
            Form::OneOf(&[
                (Value::is_boolean, 2, Form::Flag),
                (is_any, 1, Form::OneOf(&SCHEMA_OR_REFERENCE)),
            ]),
        ),
        (
            "default",
            33,
            Form::OneOf(&[
                (Value::is_number, 1, Form::Double),
                (Value::is_boolean, 2, Form::Flag),
                (Value::is_string, 3, Form::Text),
            ]),
        ),
        ("description", 34, Form::Text),
        ("format", 35, Form::Text),
    ],
    36,
);
static EXTERNAL_DOCS: Message =
    Message::new(&[("description", 1, Form::Text), ("url", 2, Form::Text)], 3);
