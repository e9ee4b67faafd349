//! Parses zone files (RFC 1035, section 5), and answers from them (RFC 1034, section 4.3.2).
//!
//! `$ORIGIN`, `$TTL` and `$INCLUDE` are supported. `$GENERATE`, signatures and other classes than IN are rejected. The
//! cost is linear in the size of the files: includes are bounded by depth, number and total size.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};

use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::records::{names_mut, target};

/// The depth of included files.
const MAX_DEPTH: usize = 7;
/// The number of included files.
const MAX_INCLUDES: usize = 1000;
/// The size of all files of a zone.
const MAX_BYTES: u64 = 64 << 20;

/// An error of a zone file.
#[derive(Debug, thiserror::Error)]
#[error("{} line {line}: {reason}", file.display())]
pub(crate) struct ZoneFileError {
    file: PathBuf,
    line: usize,
    reason: Reason,
}

/// The problem of a line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Reason {
    #[error("reading: {0}")]
    Read(std::io::Error),
    #[error("a quotation mark or parenthesis is not closed")]
    Open,
    #[error("this parenthesis closes none")]
    Close,
    #[error("{0:?} is not a name")]
    Name(String),
    #[error("a record needs an owner, a TTL, a type and data")]
    Incomplete,
    #[error("{0:?} is not a record type that this server knows")]
    Type(String),
    #[error("the class {0:?} is not supported")]
    Class(String),
    #[error("{0} is not supported, or not in this form")]
    Control(String),
    #[error("the data of {kind}: {detail}")]
    Data { kind: RecordType, detail: String },
    #[error("there are too many, too deep or too large included files")]
    Limit,
    #[error("the zone has no SOA record; is the zone of the plugin that of the file?")]
    NoSoa,
    #[error("there is more than one record")]
    Trailing,
}

/// Parses one record. Names without a final dot are below `origin`.
pub(crate) fn parse_record(text: &str, origin: &Name) -> Result<Record, ZoneFileError> {
    let mut parser = Parser::new(origin.clone());
    parser.ttl = Some(3600);
    parser.text(text, Path::new("record"), 0)?;
    let error = |reason| ZoneFileError { file: "record".into(), line: 1, reason };
    match parser.records.pop() {
        Some(record) if parser.records.is_empty() => Ok(record),
        Some(_) => Err(error(Reason::Trailing)),
        None => Err(error(Reason::Incomplete)),
    }
}

struct Parser {
    origin: Name,
    owner: Option<Name>,
    ttl: Option<u32>,
    records: Vec<Record>,
    includes: usize,
    bytes: u64,
}

/// A word of an entry: the text, with escapes, and without quotation marks.
struct Word {
    text: String,
    quoted: bool,
}

/// A line, or several ones in parentheses.
struct Entry {
    line: usize,
    /// `true` if the entry begins with a space, so that its owner is that of the last one.
    is_indented: bool,
    words: Vec<Word>,
}

impl Parser {
    fn new(origin: Name) -> Self {
        Self { origin, owner: None, ttl: None, records: Vec::new(), includes: 0, bytes: 0 }
    }

    fn file(&mut self, file: &Path, depth: usize) -> Result<(), ZoneFileError> {
        let error = |reason| ZoneFileError { file: file.to_owned(), line: 1, reason };
        let length = std::fs::metadata(file).map_err(|source| error(Reason::Read(source)))?.len();
        self.bytes += length;
        if depth > MAX_DEPTH || self.includes > MAX_INCLUDES || self.bytes > MAX_BYTES {
            return Err(error(Reason::Limit));
        }
        let text = std::fs::read_to_string(file).map_err(|source| error(Reason::Read(source)))?;
        self.text(&text, file, depth)
    }

    fn text(&mut self, text: &str, file: &Path, depth: usize) -> Result<(), ZoneFileError> {
        let mut entries = Entries { rest: text.chars().peekable(), line: 1 };
        loop {
            let line = entries.line;
            let entry = entries.next_entry();
            let entry =
                entry.map_err(|reason| ZoneFileError { file: file.to_owned(), line, reason })?;
            let Some(entry) = entry else { return Ok(()) };
            if entry
                .words
                .first()
                .is_some_and(|word| word.text.eq_ignore_ascii_case("$INCLUDE") && !word.quoted)
            {
                self.include(&entry, file, depth)?;
                continue;
            }
            let line = entry.line;
            self.entry(entry).map_err(|reason| ZoneFileError {
                file: file.to_owned(),
                line,
                reason,
            })?;
        }
    }

    /// Reads an included file, whose origin and owner do not outlast it.
    fn include(&mut self, entry: &Entry, file: &Path, depth: usize) -> Result<(), ZoneFileError> {
        let error = |reason| ZoneFileError { file: file.to_owned(), line: entry.line, reason };
        let origin = match entry.words.as_slice() {
            [_, _] => self.origin.clone(),
            [_, _, origin] => self.name(&origin.text).map_err(error)?,
            _ => return Err(error(Reason::Control("$INCLUDE".to_owned()))),
        };
        let path = file.parent().unwrap_or(Path::new(".")).join(&entry.words[1].text);
        self.includes += 1;
        let before = (std::mem::replace(&mut self.origin, origin), self.owner.clone());
        let included = self.file(&path, depth + 1);
        (self.origin, self.owner) = before;
        included
    }

    fn entry(&mut self, entry: Entry) -> Result<(), Reason> {
        let mut words = entry.words.into_iter().peekable();
        if let Some(control) =
            words.peek().filter(|word| word.text.starts_with('$') && !word.quoted)
        {
            let name = control.text.to_ascii_uppercase();
            let arguments: Vec<Word> = words.skip(1).collect();
            match (name.as_str(), arguments.as_slice()) {
                ("$ORIGIN", [origin]) => self.origin = self.name(&origin.text)?,
                ("$TTL", [ttl]) => {
                    self.ttl = Some(parse_ttl(&ttl.text).ok_or(Reason::Control(name))?)
                }
                _ => return Err(Reason::Control(name)),
            }
            return Ok(());
        }
        if !entry.is_indented {
            let owner = words.next().ok_or(Reason::Incomplete)?;
            self.owner = Some(self.name(&owner.text)?);
        }
        let owner = self.owner.clone().ok_or(Reason::Incomplete)?;
        let mut ttl = None;
        let kind = loop {
            let word = words.next().ok_or(Reason::Incomplete)?.text.to_ascii_uppercase();
            match word.as_str() {
                "IN" => {}
                "CH" | "CS" | "HS" | "ANY" => return Err(Reason::Class(word)),
                _ if ttl.is_none() && parse_ttl(&word).is_some() => ttl = parse_ttl(&word),
                _ => break word,
            }
        };
        let kind: RecordType = kind.parse().map_err(|_| Reason::Type(kind))?;
        // Without $TTL, an entry has the TTL of the last one (RFC 1035, section 5.1).
        let ttl = ttl.or(self.ttl).ok_or(Reason::Incomplete)?;
        self.ttl.get_or_insert(ttl);
        let data = self.data(kind, words)?;
        self.records.push(Record::from_rdata(owner, ttl, data));
        Ok(())
    }

    fn data(&self, kind: RecordType, words: impl Iterator<Item = Word>) -> Result<RData, Reason> {
        // hickory reads escapes in character strings only within quotation marks.
        let has_strings = matches!(kind, RecordType::TXT | RecordType::HINFO | RecordType::CAA);
        let write = |word: Word| match word {
            Word { text, .. } if has_strings && text.contains('\\') => format!("\"{text}\""),
            Word { text, quoted: true } => format!("\"{text}\""),
            Word { text, .. } if text == "@" => self.origin.to_ascii(),
            Word { text, .. } => text,
        };
        let text: Vec<String> = words.map(write).collect();
        let fail = |detail: String| Reason::Data { kind, detail };
        let mut data =
            RData::try_from_str(kind, &text.join(" ")).map_err(|error| fail(error.to_string()))?;
        for name in names_mut(&mut data) {
            if !name.is_fqdn() {
                *name = self
                    .below(std::mem::take(name))
                    .ok_or_else(|| fail("a name is too long".to_owned()))?;
            }
        }
        Ok(data)
    }

    fn name(&self, text: &str) -> Result<Name, Reason> {
        if text == "@" {
            return Ok(self.origin.clone());
        }
        let name = Name::from_ascii(text).ok();
        let name = name.and_then(|name| if name.is_fqdn() { Some(name) } else { self.below(name) });
        name.ok_or_else(|| Reason::Name(text.to_owned()))
    }

    fn below(&self, name: Name) -> Option<Name> {
        let mut name = name.append_domain(&self.origin).ok()?;
        name.set_fqdn(true);
        Some(name)
    }
}

/// Parses seconds, or BIND's units such as `1h30m`.
fn parse_ttl(text: &str) -> Option<u32> {
    let (mut total, mut number) = (0u32, None::<u32>);
    for character in text.chars() {
        if let Some(digit) = character.to_digit(10) {
            number = Some(number.unwrap_or(0).checked_mul(10)?.checked_add(digit)?);
            continue;
        }
        let unit = match character.to_ascii_lowercase() {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 604_800,
            _ => return None,
        };
        total = total.checked_add(number.take()?.checked_mul(unit)?)?;
    }
    match number {
        Some(number) => total.checked_add(number),
        None => Some(total).filter(|_| !text.is_empty()),
    }
}

struct Entries<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    line: usize,
}

impl Entries<'_> {
    /// Returns the next entry with words.
    fn next_entry(&mut self) -> Result<Option<Entry>, Reason> {
        let mut depth = 0usize;
        let mut entry = Entry { line: self.line, is_indented: false, words: Vec::new() };
        let mut is_start = true;
        while let Some(next) = self.rest.next() {
            match next {
                '\n' => {
                    self.line += 1;
                    if depth == 0 && !entry.words.is_empty() {
                        return Ok(Some(entry));
                    }
                    if depth == 0 {
                        (entry.line, entry.is_indented, is_start) = (self.line, false, true);
                        continue;
                    }
                }
                ';' => while self.rest.next_if(|next| *next != '\n').is_some() {},
                '(' => depth += 1,
                ')' => depth = depth.checked_sub(1).ok_or(Reason::Close)?,
                '"' => entry.words.push(self.quoted()?),
                space if space.is_whitespace() => entry.is_indented |= is_start,
                first => entry.words.push(self.word(first)?),
            }
            is_start = false;
        }
        match depth {
            0 => Ok(Some(entry).filter(|entry| !entry.words.is_empty())),
            _ => Err(Reason::Open),
        }
    }

    fn quoted(&mut self) -> Result<Word, Reason> {
        let mut text = String::new();
        loop {
            match self.rest.next().ok_or(Reason::Open)? {
                '"' => return Ok(Word { text, quoted: true }),
                '\\' => text.extend(['\\', self.rest.next().ok_or(Reason::Open)?]),
                next => {
                    self.line += usize::from(next == '\n');
                    text.push(next);
                }
            }
        }
    }

    fn word(&mut self, first: char) -> Result<Word, Reason> {
        let mut text = String::new();
        let mut next = Some(first);
        while let Some(character) = next {
            text.push(character);
            if character == '\\' {
                text.push(self.rest.next().ok_or(Reason::Open)?);
            }
            next = self
                .rest
                .next_if(|next| !next.is_whitespace() && !matches!(next, ';' | '(' | ')' | '"'));
        }
        Ok(Word { text, quoted: false })
    }
}

/// A zone in memory.
#[derive(Debug)]
pub(crate) struct ZoneData {
    origin: Name,
    soa: Record,
    /// The records by name in lower case. Names between the origin and a name with records are nodes, too.
    nodes: HashMap<Name, Node>,
}

type Node = BTreeMap<RecordType, Vec<Record>>;

/// The result of a lookup in a zone.
#[derive(Debug)]
pub(crate) enum LookupResult {
    /// The name has these records.
    Records(Vec<Record>),
    /// The name is an alias for another one. The records are the aliases on the way to it.
    Alias { records: Vec<Record>, target: Name },
    /// The name exists without records of the type.
    NoData(Vec<Record>),
    /// The zone does not have the name. Aliases may lead to it.
    NoName(Vec<Record>),
    /// Another server has the name.
    Delegation(Vec<Record>),
}

/// The number of aliases that are followed within a zone.
const MAX_ALIASES: usize = 8;

impl ZoneData {
    /// Reads a zone from its file. Records outside the zone are left out.
    pub(crate) fn read(file: &Path, origin: &Name) -> Result<Self, ZoneFileError> {
        let mut parser = Parser::new(origin.clone());
        parser.file(file, 0)?;
        let mut nodes: HashMap<Name, Node> = HashMap::new();
        for record in parser.records.into_iter().filter(|record| origin.zone_of(&record.name)) {
            let name = record.name.to_lowercase();
            let mut above = name.base_name();
            while origin.zone_of(&above) && !nodes.contains_key(&above) && above != *origin {
                let next = above.base_name();
                nodes.insert(above, Node::new());
                above = next;
            }
            nodes.entry(name).or_default().entry(record.record_type()).or_default().push(record);
        }
        let apex = nodes.get(&origin.to_lowercase());
        let soa = apex.and_then(|apex| apex.get(&RecordType::SOA)?.first()).cloned();
        let no_soa = || ZoneFileError { file: file.to_owned(), line: 1, reason: Reason::NoSoa };
        Ok(Self { origin: origin.to_lowercase(), soa: soa.ok_or_else(no_soa)?, nodes })
    }

    /// Returns the SOA record for negative answers, with the shorter of its TTL and its minimum (RFC 2308).
    pub(crate) fn negative_soa(&self) -> Record {
        let mut soa = self.soa.clone();
        if let RData::SOA(data) = &soa.data {
            soa.ttl = soa.ttl.min(data.minimum);
        }
        soa
    }

    /// Returns the serial number.
    pub(crate) fn serial(&self) -> Option<u32> {
        if let RData::SOA(soa) = &self.soa.data { Some(soa.serial) } else { None }
    }

    /// Returns the records of the zone's name servers.
    pub(crate) fn name_servers(&self) -> Vec<Record> {
        self.nodes
            .get(&self.origin)
            .and_then(|apex| apex.get(&RecordType::NS))
            .cloned()
            .unwrap_or_default()
    }

    pub(crate) fn soa(&self) -> Record {
        self.soa.clone()
    }

    /// Returns all records, beginning and ending with the SOA record.
    pub(crate) fn transfer(&self) -> Vec<Record> {
        let all = self.nodes.values().flat_map(BTreeMap::values).flatten();
        let others = all.filter(|record| record.record_type() != RecordType::SOA).cloned();
        [self.soa.clone()].into_iter().chain(others).chain([self.soa.clone()]).collect()
    }

    /// Returns the addresses of the names that the records name, as far as the zone has them.
    pub(crate) fn addresses(&self, records: &[Record]) -> Vec<Record> {
        let nodes = records
            .iter()
            .filter_map(|record| self.nodes.get(&target(&record.data)?.to_lowercase()));
        let addresses = |node: &'_ Node| {
            let kinds = [RecordType::A, RecordType::AAAA];
            kinds
                .into_iter()
                .filter_map(|kind| node.get(&kind))
                .flatten()
                .cloned()
                .collect::<Vec<_>>()
        };
        nodes.flat_map(addresses).collect()
    }

    /// Looks up a name, and follows aliases within the zone.
    pub(crate) fn find(&self, name: &Name, kind: RecordType) -> LookupResult {
        let (mut records, mut name) = (Vec::new(), name.clone());
        for _ in 0..MAX_ALIASES {
            let Some(node) = self.node(&name) else { return LookupResult::NoName(records) };
            let node = match node {
                Match::Delegated(servers) => return LookupResult::Delegation(servers),
                Match::Node(node) => node,
            };
            let owned = |found: &Vec<Record>| {
                found.iter().map(|record| renamed(record, &name)).collect::<Vec<_>>()
            };
            if kind == RecordType::ANY {
                records.extend(node.values().flat_map(owned));
                return LookupResult::Records(records);
            }
            if let Some(found) = node.get(&kind) {
                records.extend(owned(found));
                return LookupResult::Records(records);
            }
            let alias = node.get(&RecordType::CNAME).and_then(|aliases| aliases.first());
            let Some(RData::CNAME(target)) = alias.map(|alias| &alias.data) else {
                return LookupResult::NoData(records);
            };
            records.extend(alias.map(|alias| renamed(alias, &name)));
            if !self.origin.zone_of(&target.0) {
                return LookupResult::Alias { records, target: target.0.clone() };
            }
            name = target.0.clone();
        }
        LookupResult::Records(records)
    }

    /// Returns the node of a name: its own, or that of a wildcard. `None` if the zone does not have the name.
    fn node(&self, name: &Name) -> Option<Match<'_>> {
        let lower = name.to_lowercase();
        let above = usize::from(self.origin.num_labels());
        let labels = lower.iter().len();
        let mut encloser = None;
        for count in above..=labels {
            let part = lower.trim_to(count);
            let Some(node) = self.nodes.get(&part) else { break };
            if let Some(servers) = node.get(&RecordType::NS).filter(|_| count > above) {
                return Some(Match::Delegated(servers.clone()));
            }
            if count == labels {
                return Some(Match::Node(node));
            }
            encloser = Some(part);
        }
        let wildcard = encloser?.prepend_label("*").ok()?;
        self.nodes.get(&wildcard).map(Match::Node)
    }
}

/// Returns a record with the name of the question, which a wildcard stands for.
fn renamed(record: &Record, name: &Name) -> Record {
    let mut record = record.clone();
    record.name = name.clone();
    record
}

enum Match<'z> {
    Node(&'z Node),
    Delegated(Vec<Record>),
}

#[cfg(test)]
mod tests;
