//! The rule `edns0` of the plugin `rewrite`: sets, appends, replaces or removes an option of a query.

use std::net::IpAddr;

use hickory_proto::{
    op::Edns,
    rr::rdata::opt::{ClientSubnet, EdnsCode, EdnsOption, NSIDPayload},
};

use crate::{
    chain::{Next, Request},
    directive::{CorefileError, Directive},
};

/// The payload size of a query that gets an option and had none.
const PAYLOAD: u16 = 1232;

#[derive(Debug)]
pub(super) struct EdnsRule {
    action: Action,
    option: EdnsValue,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Set,
    Append,
    Replace,
    Unset,
}

#[derive(Debug)]
enum EdnsValue {
    Local { code: u16, data: Data },
    Nsid,
    Subnet { bits4: u8, bits6: u8 },
}

#[derive(Debug)]
enum Data {
    Bytes(Vec<u8>),
    /// A variable of the query, or a label of the plugin `metadata`.
    Variable(String),
}

const VARIABLES: [&str; 6] =
    ["qname", "qtype", "client_ip", "client_port", "protocol", "server_port"];

impl EdnsRule {
    /// Parses the words after `edns0`. `revert` is the default here: options of queries are not copied to answers.
    pub(super) fn parse(directive: &Directive, words: &[String]) -> Result<Self, CorefileError> {
        let words = words.strip_suffix(&["revert".to_owned()]).unwrap_or(words);
        let [kind, action, rest @ ..] = words else {
            return directive
                .fail("edns0 needs local, nsid or subnet, and set, append, replace or unset");
        };
        let action = match action.as_str() {
            "set" => Action::Set,
            "append" => Action::Append,
            "replace" => Action::Replace,
            "unset" => Action::Unset,
            _ => return directive.fail(format!("{action:?} is not set, append, replace or unset")),
        };
        let option = match (kind.as_str(), rest) {
            ("local", [code]) if action == Action::Unset => EdnsValue::Local {
                code: option_code(directive, code)?,
                data: Data::Bytes(Vec::new()),
            },
            ("local", [code, data]) if action != Action::Unset => EdnsValue::Local {
                code: option_code(directive, code)?,
                data: data_of(directive, data)?,
            },
            ("nsid", []) => EdnsValue::Nsid,
            ("subnet", []) if action == Action::Unset => EdnsValue::Subnet { bits4: 0, bits6: 0 },
            ("subnet", [bits4, bits6]) => EdnsValue::Subnet {
                bits4: directive.number(bits4)?,
                bits6: directive.number(bits6)?,
            },
            _ => return directive.fail(format!("unknown form of edns0 {kind}")),
        };
        match option {
            EdnsValue::Subnet { bits4: 33.., .. } | EdnsValue::Subnet { bits6: 129.., .. } => {
                directive.fail("a subnet has at most 32 bits for IPv4 and 128 for IPv6")
            }
            option => Ok(Self { action, option }),
        }
    }

    /// Changes the request, and returns `true` if there was something to change.
    pub(super) fn apply(&self, request: &mut Request, next: Next<'_>) -> bool {
        let value = self.option.value(request, next);
        let code = EdnsCode::from(&value);
        let has = request.edns.as_ref().is_some_and(|edns| edns.option(code).is_some());
        let changes = match self.action {
            Action::Set => true,
            Action::Append => !has,
            Action::Replace | Action::Unset => has,
        };
        if changes {
            let edns = request.edns.get_or_insert_with(|| {
                let mut edns = Edns::new();
                edns.set_max_payload(PAYLOAD);
                edns
            });
            edns.options_mut().remove(code);
            if self.action != Action::Unset {
                edns.options_mut().insert(value);
            }
        }
        changes
    }
}

impl EdnsValue {
    fn value(&self, request: &Request, next: Next<'_>) -> EdnsOption {
        match self {
            Self::Local { code, data: Data::Bytes(bytes) } => {
                EdnsOption::Unknown(*code, bytes.clone())
            }
            Self::Local { code, data: Data::Variable(name) } => {
                EdnsOption::Unknown(*code, variable(name, request, next))
            }
            Self::Nsid => NSIDPayload::new(Vec::new())
                .map_or(EdnsOption::Unknown(3, Vec::new()), EdnsOption::NSID),
            Self::Subnet { bits4, bits6 } => {
                let (ip, bits) = match request.client.ip().to_canonical() {
                    IpAddr::V4(ip) => {
                        let mask = u32::MAX.checked_shl(32 - u32::from(*bits4)).unwrap_or(0);
                        (IpAddr::V4((ip.to_bits() & mask).into()), *bits4)
                    }
                    IpAddr::V6(ip) => {
                        let mask = u128::MAX.checked_shl(128 - u32::from(*bits6)).unwrap_or(0);
                        (IpAddr::V6((ip.to_bits() & mask).into()), *bits6)
                    }
                };
                EdnsOption::Subnet(ClientSubnet::new(ip, bits, 0))
            }
        }
    }
}

fn variable(name: &str, request: &Request, next: Next<'_>) -> Vec<u8> {
    match name {
        "qname" => request.name().to_ascii().into_bytes(),
        "qtype" => u16::from(request.kind()).to_be_bytes().to_vec(),
        "client_ip" => match request.client.ip().to_canonical() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        },
        "client_port" => request.client.port().to_be_bytes().to_vec(),
        "server_port" => request.port.to_be_bytes().to_vec(),
        "protocol" => if request.tcp { "tcp" } else { "udp" }.into(),
        label => next.metadata(label, request).unwrap_or_default().into_bytes(),
    }
}

/// Parses the code of a local option.
fn option_code(directive: &Directive, text: &str) -> Result<u16, CorefileError> {
    match text.strip_prefix("0x").map(|digits| u16::from_str_radix(digits, 16)) {
        Some(Ok(code)) => Ok(code),
        Some(Err(_)) => directive.fail(format!("{text:?} is not the code of an option")),
        None => directive.number(text),
    }
}

fn data_of(directive: &Directive, text: &str) -> Result<Data, CorefileError> {
    if let Some(name) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
        return match name {
            known if VARIABLES.contains(&known) || known.contains('/') => {
                Ok(Data::Variable(known.to_owned()))
            }
            _ => directive.fail(format!("the variable {text} is not supported")),
        };
    }
    let Some(digits) = text.strip_prefix("0x") else {
        return Ok(Data::Bytes(text.as_bytes().to_vec()));
    };
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    match digits.as_bytes().chunks(2).map(|pair| byte(pair).filter(|_| pair.len() == 2)).collect() {
        Some(bytes) => Ok(Data::Bytes(bytes)),
        None => directive.fail(format!("{text:?} is not hexadecimal")),
    }
}
