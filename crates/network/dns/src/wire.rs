//! Reads and shortens encoded messages without decoding them.

const HEADER: usize = 12;

pub(crate) fn id(packet: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes([*packet.first()?, *packet.get(1)?]))
}

/// Returns the end of the question if there is exactly one.
fn question_end(packet: &[u8]) -> Option<usize> {
    if packet.get(4..6)? != [0, 1] {
        return None;
    }
    let end = skip_name(packet, HEADER)? + 4;
    (end <= packet.len()).then_some(end)
}

/// Returns a truncated response with only header and question, which makes the client retry over TCP.
pub(crate) fn truncated(packet: &[u8]) -> Vec<u8> {
    let end = question_end(packet).unwrap_or(HEADER.min(packet.len()));
    let mut short = packet[..end].to_vec();
    if let Some(flags) = short.get_mut(2) {
        *flags |= 0x02;
    }
    if let Some(counts) = short.get_mut(6..HEADER) {
        counts.fill(0);
    }
    short
}

fn skip_name(packet: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *packet.get(at)? {
            0 => return Some(at + 1),
            length if length & 0xc0 == 0xc0 => return Some(at + 2),
            length if length & 0xc0 == 0 => at += 1 + usize::from(length),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::{
        op::{Edns, Message, OpCode, Query},
        rr::{Name, RData, Record, RecordType, rdata::A},
    };
    use proptest::prelude::*;

    use super::*;

    fn response() -> Vec<u8> {
        let name = Name::from_ascii("www.example.com.").unwrap();
        let mut message = Message::response(7, OpCode::Query);
        message.add_query(Query::query(name.clone(), RecordType::A));
        message.add_answer(Record::from_rdata(name, 60, RData::A(A([192, 0, 2, 1].into()))));
        message.set_edns(Edns::new());
        message.to_vec().unwrap()
    }

    #[test]
    fn truncated_response_is_valid_and_keeps_question() {
        let short = Message::from_vec(&truncated(&response())).unwrap();
        assert!(short.metadata.truncation && short.answers.is_empty() && short.queries.len() == 1);
    }

    proptest! {
        #[test]
        fn never_panics_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = (question_end(&bytes), truncated(&bytes));
        }

        #[test]
        fn never_panics_on_changed_message(at in 0usize..120, byte in any::<u8>()) {
            let mut bytes = response();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = (question_end(&bytes), truncated(&bytes));
        }
    }
}
