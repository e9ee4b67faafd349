//! The reasons why a certificate, request, key or chain is rejected.

/// The accepted kinds of public keys, for messages.
const KNOWN_KEYS: &str = "RSA with 2048 to 8192 bits, ECDSA on P-256, P-384 or P-521, and Ed25519";

/// The reason why a certificate, request, key or chain is rejected. The message completes "cannot be parsed:" or "is
/// refused:". Messages of chains are those of Go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    // DER
    #[error("it is not DER")]
    NotDer,
    #[error("{element} has tag {found:#04x} instead of {expected:#04x}")]
    Tag { element: &'static str, found: u8, expected: u8 },
    #[error("{0} ends too early")]
    Short(&'static str),
    #[error("{0} has bytes after its end")]
    Trailing(&'static str),
    #[error("a bit string of it does not consist of whole bytes")]
    PartialBytes,

    // Subjects
    #[error("its subject has an empty set of attributes")]
    EmptySet,
    #[error("its subject has attributes of several kinds in one set")]
    MixedSet,
    #[error("its subject's attribute has no value")]
    NoValue,
    #[error("its subject has the unknown attribute {0}")]
    SubjectAttribute(String),
    #[error("its subject's {attribute} is not a readable string")]
    NotString { attribute: &'static str },
    #[error("its subject's {attribute} {text:?} has a control character")]
    ControlCharacter { attribute: &'static str, text: String },
    #[error("its subject has no common name, and a user has one")]
    NoCommonName,
    #[error(
        "its subject has {} common names, \"{}\", and one user has one", .0.len(), .0.join("\", \"")
    )]
    CommonNames(Vec<String>),
    #[error("its subject has an empty organization")]
    EmptyOrganization,
    #[error("its UID cannot be an empty string")]
    EmptyUid,
    #[error("expected 1 UID, but found multiple: {0:?}")]
    Uids(Vec<String>),

    // Requests
    #[error("it is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("its signature is of the unknown algorithm {0}")]
    SignatureAlgorithm(String),
    #[error("it has the attribute {0} twice")]
    RepeatedAttribute(String),
    #[error("it has the unknown attribute {0}")]
    UnknownAttribute(String),
    #[error("it asks for the extension {0} twice")]
    RepeatedRequest(String),
    #[error("it asks for the unknown extension {0}")]
    UnknownRequest(String),
    #[error("a subjectAltName is empty, or not of printable ASCII")]
    AltNameText,
    #[error("a subjectAltName is not an IP address")]
    AltNameAddress,
    #[error("a subjectAltName is not a DNS name, e-mail address, IP address or URI")]
    AltNameKind,

    // Certificates
    /// The parser's own message.
    #[error("{0}")]
    Parser(String),
    #[error("there are bytes after its end")]
    AfterEnd,
    #[error("invalid version")]
    Version,
    #[error("it is of version {0}, which has no extensions, and it has some")]
    VersionWithExtensions(u32),
    #[error("malformed serial number")]
    MalformedSerial,
    #[error("negative serial number")]
    NegativeSerial,
    #[error("inner and outer signature algorithm identifiers don't match")]
    TwoAlgorithms,
    #[error("certificate contains duplicate extension with OID {0:?}")]
    DuplicateExtension(String),
    #[error("its extension {0} is malformed")]
    MalformedExtension(String),
    #[error("its extension {0} is marked critical")]
    CriticalExtension(String),
    #[error("invalid subject alternative names")]
    AltNames,
    #[error("SAN iPAddress contains IPv4-mapped IPv6 address")]
    MappedAddress,
    #[error("cannot parse IP address of length {0}")]
    AddressLength(usize),
    #[error("empty name constraints extension")]
    EmptyConstraints,
    #[error("invalid NameConstraints extension")]
    Constraints,
    #[error("failed to parse {kind} constraint {text:?}")]
    Constraint { kind: &'static str, text: String },
    #[error("IP constraint contained value of invalid length")]
    ConstraintLength,
    #[error("IP constraint contained invalid mask")]
    ConstraintMask,

    // Keys
    #[error("its public key is malformed")]
    MalformedKey,
    #[error("its RSA key has {0} bits; accepted are {KNOWN_KEYS}")]
    RsaBits(usize),
    #[error("its ECDSA key is on an unknown curve; accepted are {KNOWN_KEYS}")]
    Curve,
    #[error("its key is of the unknown kind {0}; accepted are {KNOWN_KEYS}")]
    KeyKind(String),

    // Chains
    #[error("x509: unhandled critical extension")]
    UnhandledExtension,
    #[error(
        "x509: certificate has expired or is not yet valid: current time {now} is before {from}"
    )]
    NotYetValid { now: String, from: String },
    #[error(
        "x509: certificate has expired or is not yet valid: current time {now} is after {until}"
    )]
    Expired { now: String, until: String },
    #[error("x509: certificate signed by unknown authority")]
    UnknownAuthority,
    #[error(
        "x509: certificate signed by unknown authority (possibly because of {:?})", .0.to_string()
    )]
    NotSigned(Box<Self>),
    #[error("x509: signature check attempts limit reached while verifying certificate chain")]
    SignatureLimit,
    #[error("x509: invalid signature: parent certificate cannot sign this kind of certificate")]
    ParentUsage,
    #[error("x509: cannot verify signature: insecure algorithm SHA1")]
    Sha1,
    #[error("x509: cannot verify signature: algorithm unimplemented")]
    Unimplemented,
    #[error("x509: verification failure")]
    Verification,
    #[error("x509: certificate specifies an incompatible key usage")]
    KeyUsage,
    #[error("x509: certificate is not authorized to sign other certificates")]
    NotAuthority,
    #[error("x509: too many intermediates for path length constraint")]
    PathLength,
    #[error("x509: too many name constraints")]
    ConstraintLimit,
    #[error(
        "x509: a root or intermediate certificate is not authorized to sign for this name: {0}"
    )]
    Name(Box<Self>),
    #[error("{name} is excluded by constraint {constraint:?}")]
    Excluded { name: String, constraint: String },
    #[error("{name} is not permitted by any constraint")]
    NotPermitted { name: String },
    #[error("x509: cannot parse dnsName {0:?}")]
    DnsName(String),
    #[error("cannot parse rfc822Name {0:?}")]
    EmailName(String),
    #[error("cannot parse URI {0:?}")]
    UriName(String),
    #[error("URI with {host} ({uri:?}) cannot be matched against constraints")]
    UriHost { host: &'static str, uri: String },
}
