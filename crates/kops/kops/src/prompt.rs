//! Asks the user whether to continue, as `rolling-update cluster --interactive` does.

use std::{cell::RefCell, io::BufRead};

use crate::{environment::CommandEnvironment, error::Error};

/// The longest answer that is read, in bytes.
const LONGEST: u64 = 1024;

/// The user's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    No,
    /// Yes, also to all later questions.
    Always,
}

/// Asks whether to continue, and waits for a line of the standard input. Other work of the command continues meanwhile.
pub(crate) async fn ask(out: &RefCell<&mut CommandEnvironment<'_>>) -> Result<Answer, Error> {
    {
        let mut context = out.borrow_mut();
        write!(context.out, "Continue? (Y)es, (N)o, (A)lwaysYes: [Y] ")?;
        context.out.flush()?;
    }
    let read = || read_answer(&mut std::io::stdin().lock());
    Ok(tokio::task::spawn_blocking(read).await.map_err(std::io::Error::from)??)
}

/// Reads an answer. The default is yes; without any input the answer is no.
fn read_answer(input: &mut dyn BufRead) -> std::io::Result<Answer> {
    let mut line = String::new();
    if std::io::Read::take(input, LONGEST).read_line(&mut line)? == 0 {
        return Ok(Answer::No);
    }
    Ok(match line.trim().to_lowercase().as_str() {
        "" | "y" | "yes" => Answer::Yes,
        "a" => Answer::Always,
        // An unclear answer must not end a machine.
        _ => Answer::No,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continues_only_if_told() {
        for (text, answer) in [
            ("\n", Answer::Yes),
            ("Y\n", Answer::Yes),
            (" a \n", Answer::Always),
            ("n\n", Answer::No),
            ("what\n", Answer::No),
            ("", Answer::No),
        ] {
            assert_eq!(read_answer(&mut text.as_bytes()).unwrap(), answer, "{text:?}");
        }
        let endless = "x".repeat(1 << 20);
        assert_eq!(read_answer(&mut endless.as_bytes()).unwrap(), Answer::No);
        assert!(read_answer(&mut &b"\xff\n"[..]).is_err());
    }
}
