//! The static tokens of `--token-auth-file`: lines of `token,user,uid[,"group1,group2"]`.

use std::collections::HashMap;

use api_meta::{UserInfo, user::GROUP_AUTHENTICATED};

use super::{Authenticated, BearerToken, TokenAuthenticator, TokenError, jwt::DigestCache};

/// An invalid line, counted from 1.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot read the token file: line {line}: {cause}; expected token,user,uid and, in quotes, groups"
)]
pub struct TokenFileError {
    line: usize,
    cause: &'static str,
}

/// The users by the hash of their token.
pub struct TokenFile(HashMap<[u8; 32], UserInfo>);

impl TokenFile {
    /// Parses a file. Any invalid line is an error.
    pub fn parse(text: &str) -> Result<Self, TokenFileError> {
        let mut users = HashMap::new();
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = |cause| TokenFileError { line: i + 1, cause };
            let fields = fields(line).ok_or_else(|| wrong("a quote is not closed"))?;
            let [token, name, uid, rest @ ..] = fields.as_slice() else {
                return Err(wrong("fewer than three columns"));
            };
            if token.is_empty() {
                return Err(wrong("empty token"));
            }
            let groups = rest
                .first()
                .map_or("", String::as_str)
                .split(',')
                .map(str::trim)
                .filter(|g| !g.is_empty());
            let groups = groups.chain([GROUP_AUTHENTICATED]).map(str::to_owned).collect();
            let user =
                UserInfo { name: name.clone(), uid: uid.clone(), groups, ..UserInfo::default() };
            users.insert(DigestCache::<()>::key(token), user);
        }
        Ok(Self(users))
    }
}

/// Splits a line of comma-separated values. A quoted column may contain commas.
fn fields(line: &str) -> Option<Vec<String>> {
    let (mut out, mut field, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => field.extend(chars.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => out.push(std::mem::take(&mut field).trim().to_owned()),
            c => field.push(c),
        }
    }
    out.push(field.trim().to_owned());
    (!quoted).then_some(out)
}

impl TokenAuthenticator for TokenFile {
    fn authenticate(&self, bearer: BearerToken<'_>) -> Result<Option<Authenticated>, TokenError> {
        let user = self.0.get(&DigestCache::<()>::key(bearer.token));
        Ok(user
            .map(|user| Authenticated { user: user.clone(), audiences: bearer.audiences.to_vec() }))
    }
}

#[cfg(test)]
mod tests {
    use api_meta::Timestamp;

    use super::*;
    use crate::testing::{Cluster, authenticate};

    #[test]
    fn reads_users_and_groups() {
        let file = TokenFile::parse("t1,alice,1\n\nt2,bob,2,\"dev, ops\"\n").unwrap();
        let ask = |token: &str| {
            let found = authenticate(&file, token, "", Timestamp::default(), &Cluster::default());
            let found = found.unwrap();
            found.map(|a| (a.user.name, a.user.groups.join(" ")))
        };
        assert_eq!(ask("t1"), Some(("alice".into(), "system:authenticated".into())));
        assert_eq!(ask("t2"), Some(("bob".into(), "dev ops system:authenticated".into())));
        assert_eq!(ask("t3"), None);
        for bad in ["t,u", ",u,1", "t,u,1,\"g"] {
            assert!(TokenFile::parse(bad).is_err(), "{bad}");
        }
    }
}
