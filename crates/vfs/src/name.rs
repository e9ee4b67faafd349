//! Names of objects: parts between slashes, none of which means anything to the file system.

use crate::Error;

/// How names of unfinished writes begin. Whoever ended in between leaves such a file, which is no object.
pub(crate) const UNFINISHED: &str = ".new-";

const LONGEST_PART: usize = 255;
const LONGEST: usize = 1024;

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
                return wrong("such names are unfinished writes'");
            }
            _ => {}
        }
    }
    Ok(())
}

/// The directory that an object is in, and what it is called there.
pub(crate) fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}
