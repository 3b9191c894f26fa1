//! Files, functions and regions of the script are short.

use super::*;

const LUA_FUNCTION_LINES_MAX: usize = 55;
const LUA_FILE_LINES_MAX: usize = 350;

/// Functions without those in them, and regions without functions: what is read as one.
#[test]
fn lua_files_functions_and_regions_stay_short() {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut functions = 0;
    for source in sources("src", &["lua"]) {
        let is_code = |line: &&str| {
            !line.trim().is_empty() && (!line.trim().starts_with("--") || line.starts_with("--{"))
        };
        let lines: Vec<&str> = source.text.lines().filter(is_code).collect();
        assert!(
            lines.len() <= LUA_FILE_LINES_MAX,
            "{} has {} code lines",
            source.path,
            lines.len()
        );
        // The lines of each, innermost last; what stands outside of all is the first.
        let mut open = vec![(String::new(), 0, 0)];
        for line in lines {
            if line.starts_with("--{") {
                open = vec![(line.to_owned(), 0, 0)];
                continue;
            }
            let begins = line.contains("function(") || line.contains("function ");
            if begins && !line.contains(" end") {
                functions += 1;
                open.push((line.trim().to_owned(), indent(line), 0));
                continue;
            }
            if open.len() > 1
                && line.trim_start().starts_with("end")
                && indent(line) == open[open.len() - 1].1
            {
                open.pop();
                continue;
            }
            let (name, _, own) = open.last_mut().unwrap();
            *own += 1;
            assert!(
                *own <= LUA_FUNCTION_LINES_MAX,
                "{}: {name} has more lines",
                source.path
            );
        }
        assert_eq!(
            open.len(),
            1,
            "{}: {} has no end",
            source.path,
            open.last().unwrap().0
        );
    }
    assert!(functions > 40, "{functions} functions found");
}
