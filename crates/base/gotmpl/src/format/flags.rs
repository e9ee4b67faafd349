//! The flags of a verb, and the padding that they describe.

/// The flags between `%` and the verb, and `#` before `v`.
#[derive(Clone, Copy, Default)]
pub(super) struct Flags {
    pub(super) minus: bool,
    pub(super) plus: bool,
    pub(super) sharp: bool,
    pub(super) space: bool,
    pub(super) zero: bool,
    pub(super) go_syntax: bool,
    pub(super) width: Option<usize>,
    pub(super) precision: Option<usize>,
}

/// Pads a text to the width of the flags.
pub(super) fn pad(out: &mut String, text: &str, flags: Flags) {
    let missing = flags.width.unwrap_or(0).saturating_sub(text.chars().count());
    let fill = if flags.zero && !flags.minus { "0" } else { " " };
    if flags.minus {
        out.push_str(text);
        out.push_str(&fill.repeat(missing));
    } else {
        out.push_str(&fill.repeat(missing));
        out.push_str(text);
    }
}

/// Pads a number. The sign precedes padding zeros.
pub(super) fn pad_number(out: &mut String, text: &str, flags: Flags) {
    let sign_len = text.len() - text.trim_start_matches(['+', '-', ' ']).len();
    if flags.zero && !flags.minus && sign_len > 0 {
        out.push_str(&text[..sign_len]);
        let width = flags.width.map(|width| width.saturating_sub(sign_len));
        pad(out, &text[sign_len..], Flags { width, ..flags });
    } else {
        pad(out, text, flags);
    }
}
