use base64::{Engine, engine::general_purpose::STANDARD};

use crate::error::Error;

const LINE: usize = 64;

/// Encodes one PEM block.
pub fn encode(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let mut out = format!("-----BEGIN {label}-----\n");
    for line in body.as_bytes().chunks(LINE) {
        // Base64 is ASCII, so every chunk is valid UTF-8.
        out.push_str(std::str::from_utf8(line).unwrap_or_default());
        out.push('\n');
    }
    out.push_str("-----END ");
    out.push_str(label);
    out.push_str("-----\n");
    out
}

/// Decodes all PEM blocks as label and content. Text between blocks is ignored, like in OpenSSL and Go.
pub fn decode_all(text: &str) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in text.lines().map(str::trim) {
        match &mut open {
            None => {
                if let Some(label) =
                    line.strip_prefix("-----BEGIN ").and_then(|l| l.strip_suffix("-----"))
                {
                    open = Some((label.to_owned(), String::new()));
                }
            }
            Some((label, body)) => {
                if line.starts_with("-----END ") {
                    let der = STANDARD.decode(body.as_bytes()).map_err(|e| {
                        Error::MalformedPem(format!("the {label} block is not base64: {e}"))
                    })?;
                    blocks.push((std::mem::take(label), der));
                    open = None;
                } else if !line.contains(':') {
                    // A line with a colon is a header of the old encrypted form.
                    body.push_str(line);
                }
            }
        }
    }
    match open {
        Some((label, _)) => Err(Error::MalformedPem(format!("the {label} block has no end"))),
        None => Ok(blocks),
    }
}

/// Returns the blocks that have one of the labels. The error lists the labels that were found instead.
pub(crate) fn blocks_of(
    text: &str,
    wanted: &'static str,
    labels: &[&str],
) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let all = decode_all(text)?;
    let found = match all.as_slice() {
        [] => "no PEM text".to_owned(),
        blocks => blocks.iter().map(|(label, _)| label.as_str()).collect::<Vec<_>>().join(", "),
    };
    let matching: Vec<_> =
        all.into_iter().filter(|(label, _)| labels.contains(&label.as_str())).collect();
    if matching.is_empty() { Err(Error::NoPemBlock { wanted, found }) } else { Ok(matching) }
}
