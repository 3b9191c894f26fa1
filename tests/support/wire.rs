//! A connection to Redis that sends any command, without a process for each.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::redis::Redis;
use super::server::PATIENCE;

pub struct Wire(TcpStream);

impl Wire {
    pub fn to(redis: &Redis) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", redis.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// Sends a command. Returns the first byte of the reply, which is `-` for an error, and the reply's text. The reply must be no
    /// list.
    pub fn call(&mut self, command: &str, words: &[Vec<u8>]) -> (u8, Vec<u8>) {
        let mut bytes = format!(
            "*{}\r\n${}\r\n{command}\r\n",
            words.len() + 1,
            command.len()
        )
        .into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).bytes());
            bytes.extend(word);
            bytes.extend(b"\r\n");
        }
        self.0.write_all(&bytes).unwrap();
        let line = self.line();
        let mut contents = line[1..].to_vec();
        if line[0] == b'$' {
            contents = vec![
                0;
                std::str::from_utf8(&contents)
                    .unwrap()
                    .trim()
                    .parse::<usize>()
                    .unwrap()
                    + 2
            ];
            self.0.read_exact(&mut contents).unwrap();
        }
        (line[0], contents)
    }

    /// Sends a command of plain words, which must succeed.
    pub fn run(&mut self, command: &str) {
        let mut words = command.split(' ').map(|word| word.as_bytes().to_vec());
        let name = String::from_utf8(words.next().unwrap()).unwrap();
        let (kind, text) = self.call(&name, &words.collect::<Vec<_>>());
        assert_ne!(kind, b'-', "{command}: {}", String::from_utf8_lossy(&text));
    }

    fn line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        line
    }
}
