use std::iter::successors;

/// Formats an error with its causes in one line. It is for errors whose messages leave out their cause.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failure {
        #[error("outer")]
        Outer(#[source] Box<Self>),
        #[error("inner")]
        Inner,
    }

    #[test]
    fn tells_causes_from_outside_in() {
        let error = Failure::Outer(Box::new(Failure::Outer(Box::new(Failure::Inner))));
        assert_eq!(with_causes(&error), "outer: outer: inner");
    }
}
