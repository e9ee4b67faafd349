//! A parser of protobuf's text format, for the conformance tests.

/// The fields of a message, in order.
#[derive(Debug, Default, Clone)]
pub(crate) struct Message(pub(crate) Vec<(String, Item)>);

#[derive(Debug, Clone)]
pub(crate) enum Item {
    Message(Message),
    /// The bytes of a string.
    Text(Vec<u8>),
    /// A number or name, as written.
    Word(String),
}

impl Message {
    pub(crate) fn all<'m>(&'m self, name: &'m str) -> impl Iterator<Item = &'m Item> {
        self.0.iter().filter(move |(field, _)| field == name).map(|(_, item)| item)
    }

    pub(crate) fn messages<'m>(&'m self, name: &'m str) -> impl Iterator<Item = &'m Message> + 'm {
        self.all(name).filter_map(|item| match item {
            Item::Message(message) => Some(message),
            _ => None,
        })
    }

    pub(crate) fn message<'m>(&'m self, name: &'m str) -> Option<&'m Message> {
        self.messages(name).next()
    }

    pub(crate) fn text(&self, name: &str) -> String {
        match self.all(name).next() {
            Some(Item::Text(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            Some(Item::Word(word)) => word.clone(),
            _ => String::new(),
        }
    }

    pub(crate) fn is(&self, name: &str) -> bool {
        self.text(name) == "true"
    }
}

pub(crate) fn read(text: &str) -> Message {
    let mut reader = Reader { bytes: text.as_bytes(), at: 0 };
    reader.message(None)
}

struct Reader<'t> {
    bytes: &'t [u8],
    at: usize,
}

impl Reader<'_> {
    fn skip(&mut self) {
        while let Some(byte) = self.bytes.get(self.at) {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' | b',' | b';' => self.at += 1,
                b'#' => {
                    while self.bytes.get(self.at).is_some_and(|b| *b != b'\n') {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn peek(&mut self) -> Option<u8> {
        self.skip();
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self) -> String {
        self.skip();
        let start = self.at;
        let legal = |b: &u8| b.is_ascii_alphanumeric() || b"_.+-".contains(b);
        while self.bytes.get(self.at).is_some_and(legal) {
            self.at += 1;
        }
        assert!(
            self.at > start,
            "a word at {}: {:?}",
            start,
            self.bytes.get(start).map(|b| char::from(*b))
        );
        String::from_utf8_lossy(&self.bytes[start..self.at]).into_owned()
    }

    fn message(&mut self, close: Option<u8>) -> Message {
        let mut message = Message::default();
        loop {
            if close.is_some_and(|close| self.take(close)) || self.peek().is_none() {
                return message;
            }
            let name = if self.take(b'[') {
                let end =
                    self.bytes[self.at..].iter().position(|b| *b == b']').expect("a name's end");
                let name =
                    String::from_utf8_lossy(&self.bytes[self.at..self.at + end]).into_owned();
                self.at += end + 1;
                name
            } else {
                self.word()
            };
            self.take(b':');
            if self.take(b'[') {
                while !self.take(b']') {
                    let item = self.item();
                    message.0.push((name.clone(), item));
                }
            } else {
                let item = self.item();
                message.0.push((name, item));
            }
        }
    }

    fn item(&mut self) -> Item {
        match self.peek() {
            Some(b'{') => {
                self.at += 1;
                Item::Message(self.message(Some(b'}')))
            }
            Some(b'<') => {
                self.at += 1;
                Item::Message(self.message(Some(b'>')))
            }
            Some(b'"' | b'\'') => {
                let mut text = Vec::new();
                while matches!(self.peek(), Some(b'"' | b'\'')) {
                    self.string(&mut text);
                }
                Item::Text(text)
            }
            _ => Item::Word(self.word()),
        }
    }

    fn string(&mut self, out: &mut Vec<u8>) {
        let quote = self.bytes[self.at];
        self.at += 1;
        while self.bytes[self.at] != quote {
            let byte = self.bytes[self.at];
            self.at += 1;
            if byte != b'\\' {
                out.push(byte);
                continue;
            }
            let escape = self.bytes[self.at];
            self.at += 1;
            match escape {
                b'n' => out.push(b'\n'),
                b'r' => out.push(b'\r'),
                b't' => out.push(b'\t'),
                b'a' => out.push(7),
                b'b' => out.push(8),
                b'f' => out.push(12),
                b'v' => out.push(11),
                b'x' | b'X' => {
                    let code = self.digits(2, 16);
                    out.push(code as u8);
                }
                b'u' => self.character(4, out),
                b'U' => self.character(8, out),
                b'0'..=b'7' => {
                    self.at -= 1;
                    let code = self.digits(3, 8);
                    out.push(code as u8);
                }
                other => out.push(other),
            }
        }
        self.at += 1;
    }

    fn digits(&mut self, most: usize, radix: u32) -> u32 {
        let mut value = 0;
        for _ in 0..most {
            let Some(digit) = char::from(self.bytes[self.at]).to_digit(radix) else { break };
            value = value * radix + digit;
            self.at += 1;
        }
        value
    }

    fn character(&mut self, digits: usize, out: &mut Vec<u8>) {
        let code = self.digits(digits, 16);
        let c = char::from_u32(code).expect("a character");
        out.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
}
