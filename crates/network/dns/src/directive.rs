//! The lines of a Corefile as directives, and the parsers of their arguments.
//!
//! Every plugin parses its own options from a [`Directive`]. The grammar is that of Caddy 1. A directive is a line, and
//! `{` at its end opens a block. Quotes keep spaces and line breaks. A `#` before a word begins a comment.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use api_meta::{Cidr, GoDuration};
use hickory_proto::{
    op::ResponseCode,
    rr::{DNSClass, Name, RecordType},
};
use regex::Regex;

/// The depth of nested blocks; CoreDNS's plugins need two.
const MAX_DEPTH: usize = 8;
/// The longest regular expression, as in CoreDNS.
const MAX_REGEX: usize = 10_000;
/// The memory of a compiled regular expression. Repetitions such as `(a{1000}){1000}` would otherwise need gigabytes.
const MAX_PROGRAM: usize = 1 << 20;

/// An error in a Corefile.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{} line {line}: {reason}", file.as_deref().map_or("Corefile".into(), Path::to_string_lossy))]
pub struct CorefileError {
    /// The imported file; `None` for the Corefile itself.
    pub file: Option<Arc<Path>>,
    /// The line, counted from 1.
    pub line: usize,
    /// The problem.
    pub reason: String,
}

/// A line of a block: its words, and the lines in its braces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Directive {
    /// The imported file that holds the line; `None` for the Corefile itself.
    pub(crate) file: Option<Arc<Path>>,
    /// The line, counted from 1.
    pub(crate) line: usize,
    pub(crate) words: Vec<String>,
    pub(crate) body: Vec<Directive>,
}

impl Directive {
    pub(crate) fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    pub(crate) fn arguments(&self) -> &[String] {
        self.words.get(1..).unwrap_or_default()
    }

    /// Returns an error about this line.
    pub(crate) fn fail<T>(&self, reason: impl Into<String>) -> Result<T, CorefileError> {
        let reason = format!("{}: {}", self.name(), reason.into());
        Err(CorefileError { file: self.file.clone(), line: self.line, reason })
    }

    /// Returns an error that the option of a plugin does not exist, or not in this form.
    pub(crate) fn unknown<T>(&self, plugin: &str, known: &str) -> Result<T, CorefileError> {
        self.fail(format!("unknown option or form of {plugin}; it has {known}"))
    }

    /// Rejects arguments beyond the first `most`, and a block unless `has_options`.
    pub(crate) fn limit(&self, most: usize, has_options: bool) -> Result<(), CorefileError> {
        if let Some(argument) = self.arguments().get(most) {
            return self.fail(format!("the argument {argument:?} is not supported"));
        }
        match self.body.first().filter(|_| !has_options) {
            Some(option) => option.fail(format!("unknown option of {}", self.name())),
            None => Ok(()),
        }
    }

    pub(crate) fn zone(&self, text: &str) -> Result<Name, CorefileError> {
        Ok(parse_name(text)
            .or_else(|reason| self.fail(format!("{text:?} is not a name: {reason}")))?
            .to_lowercase())
    }

    /// Parses zones. A network in CIDR notation stands for its reverse zones.
    pub(crate) fn zones(&self, texts: &[String]) -> Result<Vec<Name>, CorefileError> {
        let mut zones = Vec::new();
        for text in texts {
            match text.parse() {
                Ok(network) => zones.extend(reverse_zones(network)),
                Err(_) => zones.push(self.zone(text)?),
            }
        }
        Ok(zones)
    }

    /// Parses zones, which are those of the server block by default.
    pub(crate) fn zones_or(
        &self,
        texts: &[String],
        default: &[Name],
    ) -> Result<Vec<Name>, CorefileError> {
        if texts.is_empty() { Ok(default.to_vec()) } else { self.zones(texts) }
    }

    pub(crate) fn number<T: FromStr>(&self, text: &str) -> Result<T, CorefileError> {
        text.parse().or_else(|_| self.fail(format!("{text:?} is not a number in range")))
    }

    pub(crate) fn duration(&self, text: &str) -> Result<Duration, CorefileError> {
        match text.parse::<GoDuration>() {
            Ok(duration) if duration >= GoDuration::ZERO => Ok(duration.to_std()),
            _ => self.fail(format!("{text:?} is not a duration; write it as 5s")),
        }
    }

    pub(crate) fn record_type(&self, text: &str) -> Result<RecordType, CorefileError> {
        match RecordType::from_str(&text.to_ascii_uppercase()) {
            Ok(kind) => Ok(kind),
            Err(_) => self.fail(format!("{text:?} is not a record type that this server knows")),
        }
    }

    pub(crate) fn class(&self, text: &str) -> Result<DNSClass, CorefileError> {
        match DNSClass::from_str(&text.to_ascii_uppercase()) {
            Ok(class) => Ok(class),
            Err(_) => self.fail(format!("{text:?} is not a class, such as IN or CH")),
        }
    }

    /// Parses a response code by name or number.
    pub(crate) fn response_code(&self, text: &str) -> Result<ResponseCode, CorefileError> {
        let by_number = text.parse::<u16>().ok();
        let name = text.to_ascii_uppercase();
        match CODES.iter().find(|(number, known)| by_number == Some(*number) || *known == name) {
            Some((number, _)) => Ok(ResponseCode::from((number >> 4) as u8, (number & 15) as u8)),
            None => self.fail(format!("{text:?} is not a response code, such as NXDOMAIN")),
        }
    }

    pub(crate) fn regex(&self, text: &str) -> Result<Regex, CorefileError> {
        if text.len() > MAX_REGEX {
            return self.fail(format!("a regular expression has at most {MAX_REGEX} characters"));
        }
        let built = regex::RegexBuilder::new(text).size_limit(MAX_PROGRAM).build();
        built.or_else(|error| self.fail(format!("{text:?} is not a regular expression: {error}")))
    }

    /// Parses a network, or a single address.
    pub(crate) fn network(&self, text: &str) -> Result<Cidr, CorefileError> {
        match text.parse().ok().map(Cidr::host).or_else(|| text.parse().ok()) {
            Some(network) => Ok(network),
            None => self
                .fail(format!("{text:?} is not an address or a network; write it as 192.0.2.0/24")),
        }
    }

    /// Parses the first argument as `:8080` or `192.0.2.1:8080`; the default is a port of all addresses.
    pub(crate) fn address(&self, default: u16) -> Result<SocketAddr, CorefileError> {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let Some(text) = self.arguments().first() else { return Ok(SocketAddr::new(any, default)) };
        let port = text.strip_prefix(':').and_then(|port| port.parse().ok());
        match port.map(|port| SocketAddr::new(any, port)).or_else(|| text.parse().ok()) {
            Some(address) => Ok(address),
            None => self.fail(format!("{text:?} is not an address to listen on")),
        }
    }
}

/// The response codes with a name, as CoreDNS lists them.
const CODES: [(u16, &str); 19] = [
    (0, "NOERROR"),
    (1, "FORMERR"),
    (2, "SERVFAIL"),
    (3, "NXDOMAIN"),
    (4, "NOTIMP"),
    (5, "REFUSED"),
    (6, "YXDOMAIN"),
    (7, "YXRRSET"),
    (8, "NXRRSET"),
    (9, "NOTAUTH"),
    (10, "NOTZONE"),
    (16, "BADSIG"),
    (17, "BADKEY"),
    (18, "BADTIME"),
    (19, "BADMODE"),
    (20, "BADNAME"),
    (21, "BADALG"),
    (22, "BADTRUNC"),
    (23, "BADCOOKIE"),
];

/// Returns the name of a response code.
pub(crate) fn code_name(code: ResponseCode) -> Option<&'static str> {
    CODES.iter().find(|(number, _)| *number == u16::from(code)).map(|(_, name)| *name)
}

/// Parses a name, which is absolute even without a final dot.
pub(crate) fn parse_name(text: &str) -> Result<Name, hickory_proto::ProtoError> {
    let mut name = Name::from_ascii(text)?;
    name.set_fqdn(true);
    Ok(name)
}

/// Reports whether one of the networks contains an address. An IPv4-mapped address is taken for its IPv4 address.
pub(crate) fn any_contains(networks: &[Cidr], ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    networks.iter().any(|network| network.contains(ip))
}

/// Returns the reverse zones of the network: one, or up to 128 (8 for IPv6) if it ends within a label.
fn reverse_zones(network: Cidr) -> Vec<Name> {
    let (value, width, label) = match network.address {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()) << 96, 32, 8),
        IpAddr::V6(ip) => (ip.to_bits(), 128, 4),
    };
    let labels = u32::from(network.prefix).div_ceil(label).max(1);
    let free = labels * label - u32::from(network.prefix);
    debug_assert!(labels * label <= width);
    let first = value.checked_shr(128 - labels * label).unwrap_or(0) >> free << free;
    let zone = |number: u128| {
        let part = |index: u32| (number >> (index * label)) & ((1 << label) - 1);
        let parts = (0..labels).map(part);
        let text: String = match network.address {
            IpAddr::V4(_) => {
                parts.map(|part| format!("{part}.")).chain(["in-addr.arpa.".to_owned()]).collect()
            }
            IpAddr::V6(_) => {
                parts.map(|part| format!("{part:x}.")).chain(["ip6.arpa.".to_owned()]).collect()
            }
        };
        Name::from_ascii(text).ok()
    };
    (0..1u128 << free).filter_map(|more| zone(first | more)).collect()
}

/// Returns the longest of these zones that holds the name.
pub(crate) fn longest<'z>(zones: &'z [Name], name: &Name) -> Option<&'z Name> {
    zones.iter().filter(|zone| zone.zone_of(name)).max_by_key(|zone| zone.num_labels())
}

/// The option `fallthrough`: the zones whose unknown names go to the next plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fallthrough {
    /// No name falls through.
    #[default]
    None,
    /// The names in these zones fall through; empty for all names.
    Zones(Vec<Name>),
}

impl Fallthrough {
    pub(crate) fn parse(option: &Directive) -> Result<Self, CorefileError> {
        Ok(Self::Zones(option.zones(option.arguments())?))
    }

    pub(crate) fn covers(&self, name: &Name) -> bool {
        match self {
            Self::None => false,
            Self::Zones(zones) => zones.is_empty() || longest(zones, name).is_some(),
        }
    }
}

/// Splits a file into directives; those of the Corefile are server blocks, whose words are their labels.
pub(crate) fn directives(
    text: &str,
    file: Option<Arc<Path>>,
) -> Result<Vec<Directive>, CorefileError> {
    let error =
        |line, reason: &str| CorefileError { file: file.clone(), line, reason: reason.to_owned() };
    let mut open: Vec<Directive> = vec![Directive::default()];
    for line in lines(text).map_err(|line| error(line, "a quotation mark is not closed"))? {
        let (opens, closes) = (line.opens(), line.closes());
        let Line { number, mut words } = line;
        if closes {
            let Some(closed) = open.pop().filter(|_| !open.is_empty()) else {
                return Err(error(number, "this brace closes a block that no line opens"));
            };
            if let Some(parent) = open.last_mut() {
                parent.body.push(closed);
            }
            continue;
        }
        if opens {
            words.pop();
        }
        let words = words.into_iter().map(|word| word.text).collect();
        let directive = Directive { file: file.clone(), line: number, words, body: Vec::new() };
        if !opens {
            if let Some(parent) = open.last_mut() {
                parent.body.push(directive);
            }
        } else if open.len() > MAX_DEPTH {
            return Err(error(number, "blocks are nested too deeply"));
        } else {
            open.push(directive);
        }
    }
    match open.len() {
        1 => Ok(open.pop().unwrap_or_default().body),
        _ => Err(error(
            open.last().map_or(1, |directive| directive.line),
            "this brace is never closed",
        )),
    }
}

/// A line of a Corefile that has words.
pub(crate) struct Line {
    /// The number of the line, counted from 1.
    pub(crate) number: usize,
    /// The words, with the brace at the end that opens a block.
    pub(crate) words: Vec<Word>,
}

impl Line {
    /// Returns `true` if the line opens a block.
    pub(crate) fn opens(&self) -> bool {
        self.words.last().is_some_and(|word| word.is("{"))
    }

    /// Returns `true` if the line closes a block.
    pub(crate) fn closes(&self) -> bool {
        matches!(self.words.as_slice(), [word] if word.is("}"))
    }
}

/// A word of a line.
pub(crate) struct Word {
    /// The text without quotation marks.
    pub(crate) text: String,
    quoted: bool,
}

impl Word {
    fn is(&self, brace: &str) -> bool {
        !self.quoted && self.text == brace
    }
}

/// Splits a text into lines of words. Returns the line of a quotation mark that is not closed as an error.
pub(crate) fn lines(text: &str) -> Result<Vec<Line>, usize> {
    let mut lines: Vec<Line> = Vec::new();
    let (mut number, mut is_new) = (1, true);
    let mut rest = text.chars().peekable();
    while let Some(first) = rest.next() {
        if first == '\n' {
            (number, is_new) = (number + 1, true);
            continue;
        }
        if first.is_whitespace() {
            continue;
        }
        if first == '#' {
            while rest.next_if(|next| *next != '\n').is_some() {}
            continue;
        }
        let begin = number;
        let mut word = Word { text: String::new(), quoted: first == '"' };
        if word.quoted {
            loop {
                match rest.next().ok_or(begin)? {
                    '"' => break,
                    '\\' if rest.peek() == Some(&'"') => word.text.extend(rest.next()),
                    next => {
                        number += usize::from(next == '\n');
                        word.text.push(next);
                    }
                }
            }
        } else {
            word.text.push(first);
            word.text.extend(std::iter::from_fn(|| rest.next_if(|next| !next.is_whitespace())));
        }
        match lines.last_mut().filter(|_| !is_new) {
            Some(line) => line.words.push(word),
            None => lines.push(Line { number: begin, words: vec![word] }),
        }
        is_new = false;
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(names: &[Name]) -> Vec<String> {
        names.iter().map(Name::to_string).collect()
    }

    #[test]
    fn splits_lines_with_quotes_comments_and_blocks() {
        let text = "a \"b  # c\" d # e\n# f\nx {\n \"y\nz\" \"q\\\"\\.\" \"{\"\n}\n";
        let parsed = directives(text, None).unwrap();
        assert_eq!(parsed[0].words, ["a", "b  # c", "d"]);
        assert_eq!((parsed[1].words.as_slice(), parsed[1].line), (&["x".to_owned()][..], 3));
        assert_eq!(parsed[1].body[0].words, ["y\nz", "q\"\\.", "{"]);
        assert_eq!(directives("a \"b\nc", None).unwrap_err().line, 1);
        let deep = format!("{}{}", "a {\n".repeat(100_000), "}\n".repeat(100_000));
        assert!(directives(&deep, None).unwrap_err().reason.contains("too deeply"));
    }

    #[test]
    fn expands_networks_to_reverse_zones() {
        let directive = Directive::default();
        let zones = |text: &str| texts(&directive.zones(&[text.to_owned()]).unwrap());
        assert_eq!(zones("10.0.0.0/8"), ["10.in-addr.arpa."]);
        assert_eq!(zones("10.1.0.0/15"), ["0.10.in-addr.arpa.", "1.10.in-addr.arpa."]);
        assert_eq!(zones("10.0.0.0/17").len(), 128);
        assert_eq!(zones("fd00::/7"), ["c.f.ip6.arpa.", "d.f.ip6.arpa."]);
        assert_eq!(zones("192.0.2.1/32"), ["1.2.0.192.in-addr.arpa."]);
        assert_eq!(zones("example.org"), ["example.org."]);
        let network = directive.network("10.8.0.0/13").unwrap();
        for (ip, inside) in [
            ("10.15.1.1", true),
            ("10.16.0.0", false),
            ("::ffff:10.9.0.1", true),
            ("fd00::1", false),
        ] {
            assert_eq!(any_contains(&[network], ip.parse().unwrap()), inside, "{ip}");
        }
        let all = directive.network("0.0.0.0/0").unwrap();
        assert!(any_contains(&[all], [1, 2, 3, 4].into()));
        for bad in ["10.0.0.0/33", "10.0.0.0/-1", "x", "10.0.0/8"] {
            assert!(directive.network(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rejects_regexes_that_need_much_memory() {
        let directive = Directive::default();
        assert!(directive.regex("(.*)-(us-west-1)\\.example\\.org").is_ok());
        for bad in ["(", "(a{1000}){1000}", &"a".repeat(10_001)] {
            assert!(directive.regex(bad).is_err());
        }
    }
}
