//! Configs that are wrong in every way that is known to hurt what reads them, made up from a seed. Shared by the suites and,
//! by path, by the config's own tests: names nothing of either.

#[path = "hostile/customers.rs"]
mod customers;
#[path = "hostile/values.rs"]
mod values;

use values::{control, durations, misplaced_secret, numbers, odd_name, settings, tags, twice};

/// One of them.
pub struct Hostile {
    /// What kind it is, for messages.
    pub kind: &'static str,
    /// The file.
    pub bytes: Vec<u8>,
    /// What follows `--set`, and what is set in the environment.
    pub set: Vec<String>,
    pub environment: Vec<(String, String)>,
}

/// Stands where secrets stand: no message may have it.
pub const SECRET: &str = "canary";

/// A whole, valid config; most of the others begin as this.
const VALID: &str = "# A comment.\nlisten:\n  grpc: [\"127.0.0.1:0\"]\nstore: { deadline: 25ms }\nplans:\n  free:\n    limits:\n      \
                     - { quota: 100, window: 1m }\n      - quota: 1000\n        window: 1h\n        algorithm: token_bucket\n  \
                     paid: { limits: [ { quota: 5, window: 1s, name: \"s\" } ], counts_as: free }\n  banned: { blocked: true }\n";

/// A valid config that leaves all the other sections to a text beside it.
const PLANS_ALONE: &str = "plans: { free: { limits: [ { quota: 100, window: 1m } ] } }\n";

/// Random numbers that a seed decides (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.roll() % bound as u64).unwrap()
    }

    fn of<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.below(among.len())]
    }
}

type Make = fn(&mut Dice) -> Vec<u8>;

const KINDS: [(&str, Make); 26] = [
    ("deep nesting", deep),
    ("aliases of aliases", alias_bomb),
    ("odd aliases", odd_aliases),
    ("a huge scalar", huge_scalar),
    ("a long or odd name", odd_name),
    ("a control character", control),
    ("byte order marks", marks),
    ("line ends", line_ends),
    ("a name twice", twice),
    ("forms of numbers", numbers),
    ("forms of durations", durations),
    ("tags", tags),
    ("documents and directives", documents),
    ("bytes that are no UTF-8", no_utf8),
    ("cut off", cut_off),
    ("bytes exchanged", exchanged),
    ("random signs", random_signs),
    ("names that are paths", path_names),
    ("very many values", many),
    ("very many tokens", tokens),
    ("block scalars", block_scalars),
    ("a secret in the wrong place", misplaced_secret),
    ("calendar windows", customers::calendar),
    ("overrides", customers::overrides),
    ("subjects of checks", customers::subjects),
    ("rules of Envoy", customers::envoy),
];

/// The config of this seed; seeds that follow each other go through all kinds.
pub fn hostile(seed: u64) -> Hostile {
    let mut dice = Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let place = usize::try_from(seed % (KINDS.len() as u64 + 1)).unwrap();
    let none = || (Vec::new(), Vec::new());
    match KINDS.get(place) {
        Some((kind, make)) => {
            let bytes = make(&mut dice);
            let (set, environment) = none();
            Hostile {
                kind,
                bytes,
                set,
                environment,
            }
        }
        None => {
            let (set, environment) = settings(&mut dice);
            Hostile {
                kind: "paths of flags and variables",
                bytes: VALID.into(),
                set,
                environment,
            }
        }
    }
}

fn deep(dice: &mut Dice) -> Vec<u8> {
    let depth = dice.of(&[20, 31, 32, 33, 129, 255, 256, 4_000, 20_000, 200_000]);
    let (opens, closes) = dice.of(&[
        ("[", "]"),
        ("{a: ", "}"),
        ("- ", ""),
        ("? ", ""),
        ("? - ", ""),
        ("- ? ", ""),
        ("[{a: ", "}]"),
        ("[? ", "]"),
        ("{? ", "}"),
        ("&a [", "]"),
        ("'[", "'"),
        ("a: [", "]"),
    ]);
    let tail = dice.of(&["a", "", "a: b", "*a", "\"", "- a", "? a"]);
    let closed = if dice.below(2) == 0 {
        closes.repeat(depth)
    } else {
        String::new()
    };
    let text = format!("{}{tail}{closed}", opens.repeat(depth));
    match dice.below(4) {
        0 => format!("{VALID}extra: {text}\n").into(),
        1 => {
            // A level a line, which takes spaces by the square of the depth.
            let line = |level: usize| format!("{}a:\n", " ".repeat(level));
            (0..depth.min(1_500)).map(line).collect::<String>().into()
        }
        _ => text.into(),
    }
}

fn alias_bomb(dice: &mut Dice) -> Vec<u8> {
    let levels = 2 + dice.below(30);
    let width = 2 + dice.below(12);
    let list = dice.below(2) == 0;
    let mut text = "a0: &a0 [x, y, z]\n".to_owned();
    for level in 1..levels {
        let alias = format!("*a{}", level - 1);
        let of = |index: usize| {
            if list {
                alias.clone()
            } else {
                format!("k{index}: {alias}")
            }
        };
        let all: Vec<String> = (0..width).map(of).collect();
        let (open, close) = if list { ("[", "]") } else { ("{ ", " }") };
        text += &format!("a{level}: &a{level} {open}{}{close}\n", all.join(", "));
    }
    if dice.below(2) == 0 {
        text.into()
    } else {
        (text + VALID).into()
    }
}

fn odd_aliases(dice: &mut Dice) -> Vec<u8> {
    let long = "b".repeat(100_000);
    let many: String = (0..50_000)
        .map(|index| format!("- &a{index} x\n- *a{index}\n"))
        .collect();
    let copies = format!(
        "a: &a \"{}\"\nb: [{}]\n",
        "x".repeat(100_000),
        "*a, ".repeat(10_000)
    );
    let text = match dice.below(9) {
        0 => "plans: &a { free: *a }\n".to_owned(),
        1 => "plans: *nowhere\n".to_owned(),
        2 => "a: &a b\n*a : c\n".to_owned(),
        3 => {
            "base: &base { a: 1 }\nplans: { <<: *base, free: { <<: [*base, *base] } }\n".to_owned()
        }
        4 => format!("a: &{long} 1\nb: *{long}\n"),
        5 => many,
        6 => copies,
        7 => "plans:\n  a: &l { limits: [ { quota: 1, window: 1s } ] }\n  b: *l\n".to_owned(),
        _ => "&a &b c: &d\n? *a\n: &\n".to_owned(),
    };
    text.into()
}

fn huge_scalar(dice: &mut Dice) -> Vec<u8> {
    let filling = dice
        .of(&["x", "1", " x", "é", "\\n", "''", "[", "0", "-", "e", "#"])
        .repeat(1 << dice.of(&[4, 12, 17, 20]));
    let field = dice.of(&[
        "name",
        "quota",
        "window",
        "algorithm",
        "anchor",
        "burst",
        "precision",
    ]);
    let quote = dice.of(&["", "'", "\""]);
    match dice.below(3) {
        0 => format!("plans: {{ p: {{ limits: [ {{ {field}: {quote}{filling}{quote} }} ] }} }}\n")
            .into(),
        1 => format!("workers: {quote}{filling}{quote}\n{VALID}").into(),
        _ => format!("store: {{ url: {quote}{filling}{quote} }}\n").into(),
    }
}

fn marks(dice: &mut Dice) -> Vec<u8> {
    match dice.below(5) {
        0 => format!("\u{feff}{VALID}").into(),
        1 => format!("\u{feff}\u{feff}{VALID}").into(),
        2 => VALID.replacen("plans", "\u{feff}plans", 1).into(),
        3 => [0xff, 0xfe]
            .into_iter()
            .chain(VALID.encode_utf16().flat_map(u16::to_le_bytes))
            .collect(),
        _ => [0xfe, 0xff]
            .into_iter()
            .chain(VALID.encode_utf16().flat_map(u16::to_be_bytes))
            .collect(),
    }
}

fn line_ends(dice: &mut Dice) -> Vec<u8> {
    let end = dice.of(&[
        "\r\n", "\r", "\n\r", "\u{85}", "\u{2028}", "\n\n", "\t\n", " \n", "\\\n",
    ]);
    let ends =
        |(index, line): (usize, &str)| format!("{line}{}", if index % 3 == 0 { "\n" } else { end });
    match dice.below(2) {
        0 => VALID.replace('\n', end).into(),
        _ => VALID
            .lines()
            .enumerate()
            .map(ends)
            .collect::<String>()
            .into(),
    }
}

fn documents(dice: &mut Dice) -> Vec<u8> {
    match dice.below(8) {
        0 => format!("{VALID}---\n{VALID}").into(),
        1 => format!("%YAML 9.9\n---\n{VALID}").into(),
        2 => format!("---\n{VALID}...\n").into(),
        3 => format!("{VALID}...\nmore\n").into(),
        4 => "---\n".repeat(100_000).into(),
        5 => "%YAML 1.2\n".repeat(10_000).into(),
        6 => "...\n".repeat(100_000).into(),
        _ => dice
            .of(&[
                "# nothing\n",
                "---",
                "...",
                "~",
                "- a",
                "text",
                "42",
                "[]",
                "{}",
                "\t",
                "\"",
                "'",
                "|",
                ">",
                "&",
                "*",
                "!",
                "%",
                "@",
                "`",
            ])
            .into(),
    }
}

fn no_utf8(dice: &mut Dice) -> Vec<u8> {
    let wrong: &[u8] = dice.of(&[
        &[0xff][..],
        &[0xc0, 0x80],
        &[0xed, 0xa0, 0x80],
        &[0xf4, 0x90, 0x80, 0x80],
        &[0xe2, 0x82],
        &[0x80],
        &[0xf8, 0x88],
    ]);
    let mut bytes = VALID.as_bytes().to_vec();
    let at = dice.below(bytes.len());
    bytes.splice(at..at, wrong.iter().copied());
    bytes
}

fn cut_off(dice: &mut Dice) -> Vec<u8> {
    let whole: String = (0..200)
        .map(|plan| format!("  p{plan}: {{ limits: [ {{ quota: {plan}, window: \"1m\" }} ] }}\n"))
        .collect();
    let whole = format!("{VALID}{whole}");
    whole.as_bytes()[..dice.below(whole.len())].to_vec()
}

fn exchanged(dice: &mut Dice) -> Vec<u8> {
    const SIGNS: &[u8] = b"[]{},:?-&*!|>'\"%@`#~ \n\t\r\0\\\xff1e0_.<=+x";
    let mut bytes = VALID.as_bytes().to_vec();
    for _ in 0..1 + dice.below(20) {
        let at = dice.below(bytes.len());
        match dice.below(3) {
            0 => bytes[at] = dice.of(SIGNS),
            1 => bytes.insert(at, dice.of(SIGNS)),
            _ => drop(bytes.remove(at)),
        }
    }
    bytes
}

fn random_signs(dice: &mut Dice) -> Vec<u8> {
    const SIGNS: &[u8] = b"[]{},:?-&*!|>'\"%@`#~ \n\n  \t\\a1";
    let length = dice.of(&[5, 50, 500, 50_000]);
    (0..length).map(|_| dice.of(SIGNS)).collect()
}

fn path_names(dice: &mut Dice) -> Vec<u8> {
    let name = dice.of(&[
        "plans.free.limits[300000000].quota",
        "plans.free.limits[-300000000].quota",
        "a[4000000000]",
        "\"a[99999999999999999999]\"",
        "plans.free.shadow",
        "store.url",
        "\"[0]\"",
        "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s.t",
    ]);
    match dice.below(2) {
        0 => format!("{name}: 1\n{VALID}").into(),
        _ => format!("plans: {{ {name}: {{ blocked: true }} }}\n").into(),
    }
}

fn many(dice: &mut Dice) -> Vec<u8> {
    let count = dice.of(&[1_000, 100_000, 700_000]);
    let all = |each: fn(usize) -> String| (0..count).map(each).collect::<String>();
    let limit = |index: usize| {
        format!(
            "{{ quota: 1, window: {}ms, name: n{index} }},",
            index + 1_000
        )
    };
    let text = match dice.below(9) {
        0 => format!(
            "listen: {{ grpc: [{}] }}\n{PLANS_ALONE}",
            all(|_| "x,".to_owned())
        ),
        1 => all(|index| format!("f{index}: 1\n")),
        2 => format!("plans:\n{}", all(|index| format!("  p{index}: {{}}\n"))),
        3 => format!(
            "plans:\n  p:\n    limits:\n{}",
            all(|_| "      - {}\n".to_owned())
        ),
        4 => format!(
            "listen: {{ grpc: \"{}\" }}\n{PLANS_ALONE}",
            ",".repeat(count)
        ),
        5 => "[,".repeat(count.min(200)) + &"a,".repeat(2 * count),
        6 => ": ".repeat(count),
        7 => format!(
            "plans: {{ p: {{ limits: [ {} ] }} }}\n",
            (0..count.min(100_000)).map(limit).collect::<String>()
        ),
        _ => format!(
            "store: {{ url: \"redis-cluster://h?{}\" }}\n{PLANS_ALONE}",
            all(|_| "node=h:1&".to_owned())
        ),
    };
    text.into()
}

/// What the parser makes the most of, for a text of some megabytes, in brackets that it looks behind.
fn tokens(dice: &mut Dice) -> Vec<u8> {
    let token = dice.of(&[
        "! ", "&a ", "*a ", "? ", "a #\n", "''\n", "\"\"\n", "[],", "{},", "a: ,", "? a,", "!a b ",
    ]);
    let open = dice.of(&["[", "{"]).repeat(dice.of(&[1, 30, 250]));
    (open + &token.repeat(dice.of(&[10_000, 1_000_000, 15_000_000 / token.len()]))).into()
}

fn block_scalars(dice: &mut Dice) -> Vec<u8> {
    let head = dice.of(&[
        "|", ">", "|9", ">-2", "|+", "|0", "|99", "|+-", ">\t", "| #", "|#", "|\\",
    ]);
    let body = dice.of(&[
        "",
        "\n",
        "\n\n\n",
        "\n a\n  b\n",
        "\n\ta\n",
        "\n---\n",
        "\n  a",
        "\n% a\n",
        "\r\n a\r\n",
    ]);
    match dice.below(2) {
        0 => format!("{VALID}workers: {head}{body}").into(),
        _ => format!("{head}{}", body.repeat(10_000)).into(),
    }
}
