//! Validates names of objects: parts between slashes, without special meaning to the file system.

use crate::error::Error;

/// The prefix of unfinished writes. A killed writer leaves such a file; it is not an object.
pub(crate) const UNFINISHED: &str = ".new-";

const LONGEST_PART: usize = 255;
const LONGEST: usize = 1024;

/// Checks that a name is valid and does not lead out of the store.
pub(crate) fn check(name: &str) -> Result<(), Error> {
    let wrong = |reason| Err(Error::Name { name: name.escape_debug().to_string(), reason });
    if name.len() > LONGEST {
        return Err(Error::Name { name: "...".to_owned(), reason: "its name is too long" });
    }
    if name.chars().any(char::is_control) {
        return wrong("its name has control characters");
    }
    for part in name.split('/') {
        match part {
            "" => return wrong("its name has an empty part"),
            "." | ".." => return wrong("its name leads out of the store"),
            part if part.len() > LONGEST_PART => return wrong("its name is too long"),
            part if part.starts_with(UNFINISHED) => {
                return wrong("its name is reserved for unfinished writes");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Splits an object's name into its directory and its last part.
pub(crate) fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}
