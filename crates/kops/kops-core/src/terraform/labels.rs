//! Validates names for Terraform and file systems. Invalid names are rejected, because they could change the
//! configuration's meaning.

use crate::error::Error;

/// The longest file name of common file systems, in bytes.
const LONGEST: usize = 255;

/// Returns the label of a resource.
pub(crate) fn label(name: &str) -> Result<String, Error> {
    let prefix = if name.starts_with(|c: char| c.is_ascii_digit()) { "prefix_" } else { "" };
    let label = name.replace('.', "-").replace('/', "--").replace(':', "_");
    identifier(&format!("{prefix}{label}"))
}

/// Validates an identifier of HCL.
pub(crate) fn identifier(name: &str) -> Result<String, Error> {
    let rest = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    if name.starts_with(first) && name.chars().all(rest) {
        Ok(name.to_owned())
    } else {
        let reason = "is not an identifier in Terraform: only letters, digits, - and _, starting with a letter";
        Err(Error::value("the name", name, reason))
    }
}

/// Validates the name of a file directly below a directory.
pub(crate) fn file(name: &str) -> Result<String, Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-@+=:".contains(c);
    let reason = match () {
        () if name.len() > LONGEST => "is longer than 255 bytes",
        () if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) => {
            "is not a plain name: only letters, digits and ._-@+=: without a leading dot"
        }
        () => return Ok(name.to_owned()),
    };
    Err(Error::value("the file", name, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validates_names() {
        for (name, wanted) in [
            ("a.example.com", "a-example-com"),
            ("1a.example.com", "prefix_1a-example-com"),
            ("from-::/0-b", "from-__--0-b"),
        ] {
            assert_eq!(label(name).unwrap(), wanted);
        }
        for hostile in ["", "a b", "a\"", "a${b}", "a\nb", "*", "é", "-a"] {
            let error = label(hostile).unwrap_err().to_string();
            assert!(error.contains("is not an identifier in Terraform"), "{error}");
        }
        assert!(file("aws_iam_role_masters.a_policy").is_ok());
        for hostile in ["", "..", "../a", "a/b", "a\\b", "a\0", "${a}", "a b", &"a".repeat(256)] {
            assert!(file(hostile).is_err(), "{hostile}");
        }
    }
}
