//! The policy that decides which Pods must present image pull credentials (`imagePullCredentialsVerificationPolicy`).

/// The error of a verification policy, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum VerificationError {
    #[error(
        "can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is not \
         \"NeverVerifyAllowlistedImages\""
    )]
    AllowlistWithoutPolicy,
    #[error("invalid image pattern in `preloadedImagesVerificationAllowlist`: {0}")]
    Pattern(#[from] PatternError),
    #[error(
        "option {0:?} specified for imagePullCredentialsVerificationPolicy. Valid options are \"NeverVerify\", \
         \"NeverVerifyPreloadedImages\", \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\""
    )]
    Policy(String),
}

/// The error of an image pattern.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PatternError {
    #[error("leading/trailing spaces are not allowed: {0}")]
    Spaces(String),
    #[error("the supplied pattern is too short: ")]
    TooShort,
    #[error("not a valid wildcard pattern, only patterns ending with '/*' are allowed: {0}")]
    Wildcard(String),
    #[error("at least registry hostname is required")]
    NoRegistry,
    #[error("neither tag nor digest is accepted in an image reference: {0}")]
    Tag(String),
}

/// The images on the node for which a Pod's credentials are verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    /// No image.
    Never,
    /// Images that a kubelet has pulled.
    Pulled,
    /// All images but those that match a pattern: an image name without tag, or all names below a path (`/*`).
    Unlisted(Vec<String>),
    /// Every image.
    Always,
}

impl Verification {
    /// Parses the policy.
    pub(crate) fn new(policy: &str, allowlist: &[String]) -> Result<Self, VerificationError> {
        if !allowlist.is_empty() && policy != "NeverVerifyAllowlistedImages" {
            return Err(VerificationError::AllowlistWithoutPolicy);
        }
        match policy {
            "" | "NeverVerifyPreloadedImages" => Ok(Self::Pulled),
            "NeverVerify" => Ok(Self::Never),
            "AlwaysVerify" => Ok(Self::Always),
            "NeverVerifyAllowlistedImages" => {
                allowlist.iter().try_for_each(|pattern| check_pattern(pattern))?;
                Ok(Self::Unlisted(allowlist.to_vec()))
            }
            other => Err(VerificationError::Policy(other.to_owned())),
        }
    }

    /// Reports whether credentials are verified for an image. `pulled` is `true` if a kubelet has pulled it.
    pub fn applies_to(&self, image: &str, pulled: bool) -> bool {
        match self {
            Self::Never => false,
            Self::Pulled => pulled,
            Self::Always => true,
            Self::Unlisted(patterns) => {
                let name = without_tag(image);
                !patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
                    Some(prefix) => name.starts_with(prefix),
                    None => name == pattern,
                })
            }
        }
    }
}

fn check_pattern(pattern: &str) -> Result<(), PatternError> {
    let below = pattern.strip_suffix("/*");
    if pattern != pattern.trim() {
        return Err(PatternError::Spaces(pattern.to_owned()));
    }
    if pattern.is_empty() {
        return Err(PatternError::TooShort);
    }
    if below.unwrap_or(pattern).contains('*') {
        return Err(PatternError::Wildcard(pattern.to_owned()));
    }
    match below {
        Some("") => Err(PatternError::NoRegistry),
        None if without_tag(pattern) != pattern => Err(PatternError::Tag(pattern.to_owned())),
        _ => Ok(()),
    }
}

/// Returns an image's name without tag and digest.
pub fn without_tag(image: &str) -> &str {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    match name.rsplit_once(':') {
        // A colon before a slash separates host and port.
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: &str = "registry.example:5000/team/app:1";

    #[test]
    fn parses_policies_as_upstream() {
        let of = |policy: &str, list: &[&str]| {
            Verification::new(policy, &list.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(of("", &[]), of("NeverVerifyPreloadedImages", &[]));
        assert!(!of("NeverVerify", &[]).unwrap().applies_to(IMAGE, true));
        let listed = "NeverVerifyAllowlistedImages";
        for (pattern, verified) in [
            ("registry.example:5000/team/app", false),
            ("registry.example:5000/team/*", false),
            ("registry.example:5000/team", true),
            ("registry.example:5000/te/*", true),
        ] {
            assert_eq!(
                of(listed, &[pattern]).unwrap().applies_to(IMAGE, true),
                verified,
                "{pattern}"
            );
        }
        for (policy, list, words) in [
            ("Sometimes", &[][..], "option \"Sometimes\" specified"),
            ("AlwaysVerify", &["a/b"], "can't set `preloadedImagesVerificationAllowlist`"),
            (listed, &["a/b:1"], "neither tag nor digest"),
            (listed, &["a/*/b"], "not a valid wildcard pattern"),
            (listed, &["/*"], "at least registry hostname"),
            (listed, &[" a"], "leading/trailing spaces"),
        ] {
            let error = of(policy, list).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
