//! The conflicts of an apply with other managers.

use std::fmt;

/// A field that another manager owns with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The manager's description in messages, such as `"kubectl" using apps/v1`.
    pub manager: String,
    /// The field's path, such as `.spec.replicas`.
    pub field: String,
}

/// The conflicts of one apply, sorted by manager. The Status (409, reason `Conflict`) has a cause for each: reason
/// `FieldManagerConflict`, message `conflict with <manager>`, and the field.
#[derive(Clone, Debug, thiserror::Error)]
pub struct Conflicts(pub Vec<Conflict>);

impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [one] = &self.0[..] {
            return write!(
                f,
                "Apply failed with 1 conflict: conflict with {}: {}",
                one.manager, one.field
            );
        }
        write!(f, "Apply failed with {} conflicts: ", self.0.len())?;
        let mut last = None;
        for conflict in &self.0 {
            if last != Some(&conflict.manager) {
                let newline = if last.is_some() { "\n" } else { "" };
                write!(f, "{newline}conflicts with {}:", conflict.manager)?;
                last = Some(&conflict.manager);
            }
            write!(f, "\n- {}", conflict.field)?;
        }
        Ok(())
    }
}
