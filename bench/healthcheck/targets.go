package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"sync/atomic"
)

// answer says the first number, then count's, each time a line comes in, until
// the input ends.
func answer(first int, count func() int) {
	in := bufio.NewScanner(os.Stdin)
	for asked := false; in.Scan(); asked = true {
		n := first
		if asked || first == 0 {
			n = count()
		}
		fmt.Println(n)
	}
}

// serveTargets is every target at once: one listener for all addresses.
func serveTargets(args []string) error {
	fs := flag.NewFlagSet("targets", flag.ContinueOnError)
	kind := fs.String("kind", "tcp", "tcp, halfopen or http")
	if err := fs.Parse(args); err != nil {
		return err
	}
	ln, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		return err
	}
	var n atomic.Int64
	go func() {
		for {
			c, err := ln.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			} else if err != nil {
				continue
			}
			n.Add(1)
			if *kind == "http" {
				go serveHTTP(c)
			} else {
				_ = c.Close()
			}
		}
	}()
	answer(ln.Addr().(*net.TCPAddr).Port, func() int { return int(n.Load()) })
	return ln.Close()
}

func serveHTTP(c net.Conn) {
	defer c.Close()
	in := bufio.NewScanner(c)
	for in.Scan() && in.Text() != "" {
	}
	_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
}
