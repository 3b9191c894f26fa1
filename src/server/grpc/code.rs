//! The names of gRPC's status codes.

use tonic::Code;

/// All status codes by number, as gRPC's documents spell them.
pub(super) const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The name of a code, as gRPC's documents spell it.
pub(super) fn name(code: Code) -> &'static str {
    CODES[code as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_own_name() {
        for (number, code_name) in CODES.iter().enumerate() {
            let code = Code::from_i32(number as i32);
            assert_eq!((code as usize, name(code)), (number, *code_name));
            // tonic writes `DeadlineExceeded`.
            assert_eq!(
                format!("{code:?}").to_uppercase(),
                code_name.replace('_', "")
            );
        }
        assert_eq!(Code::from_i32(CODES.len() as i32), Code::Unknown);
    }
}
