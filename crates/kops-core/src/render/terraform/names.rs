//! Names that Terraform and file systems take. What they do not take is refused: it would say something else there.

use crate::Error;

/// The longest name of a file that common file systems take.
const LONGEST: usize = 255;

/// The label of a resource that has a name.
pub(super) fn label(name: &str) -> Result<String, Error> {
    let prefix = if name.starts_with(|c: char| c.is_ascii_digit()) { "prefix_" } else { "" };
    let label = name.replace('.', "-").replace('/', "--").replace(':', "_");
    identifier(&format!("{prefix}{label}"))
}

/// An identifier of HCL.
pub(super) fn identifier(name: &str) -> Result<String, Error> {
    let rest = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    match name.starts_with(first) && name.chars().all(rest) {
        true => Ok(name.to_owned()),
        false => {
            let reason = "is no identifier in Terraform: letters, digits, - and _ are left of a name, and it begins with a letter";
            Err(Error::value("the name", name, reason))
        }
    }
}

/// The name of a file right below a directory.
pub(super) fn file(name: &str) -> Result<String, Error> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-@+=:".contains(c);
    let reason = match () {
        () if name.len() > LONGEST => "is longer than 255 bytes",
        () if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) => {
            "is no plain name: letters, digits and ._-@+=: are, and no dot begins it"
        }
        () => return Ok(name.to_owned()),
    };
    Err(Error::value("the file", name, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_within_their_bounds() {
        for (name, wanted) in [
            ("a.example.com", "a-example-com"),
            ("1a.example.com", "prefix_1a-example-com"),
            ("from-::/0-b", "from-__--0-b"),
        ] {
            assert_eq!(label(name).unwrap(), wanted);
        }
        for hostile in ["", "a b", "a\"", "a${b}", "a\nb", "*", "é", "-a"] {
            let error = label(hostile).unwrap_err().to_string();
            assert!(error.contains("is no identifier in Terraform"), "{error}");
        }
        assert!(file("aws_iam_role_masters.a_policy").is_ok());
        for hostile in ["", "..", "../a", "a/b", "a\\b", "a\0", "${a}", "a b", &"a".repeat(256)] {
            assert!(file(hostile).is_err(), "{hostile}");
        }
    }
}
