//! Lists of the indexes of indexed Jobs, such as `1,3-5`.

/// The error for an invalid list of indexes, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(super) enum IndexError {
    #[error("cannot convert string to integer for index: {0:?}")]
    Number(String),
    #[error("too large index: {0:?}")]
    TooLarge(String),
    #[error("non-increasing order, previous: {previous}, current: {current}")]
    Order { previous: i64, current: i64 },
}

/// Returns the number of indexes in a list such as `1,3-5`.
pub(super) fn count_indexes(text: &str, completions: i64) -> Result<i64, IndexError> {
    let number = |text: &str| {
        let index = text.parse::<i64>().map_err(|_| IndexError::Number(text.to_owned()))?;
        if index >= completions {
            return Err(IndexError::TooLarge(text.to_owned()));
        }
        Ok(index)
    };
    let (mut count, mut last) = (0, -1);
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (low, high) = (number(low)?, number(high)?);
        if low > high || low <= last {
            return Err(IndexError::Order { previous: last, current: low });
        }
        (count, last) = (count + high - low + 1, high);
    }
    Ok(count)
}
