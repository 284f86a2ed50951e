package testenv

import (
	"net"
	"testing"
)

// Accept serves l until the test ends: each connection is handed to handle, in a goroutine of its own, and closed afterwards.
func Accept(t testing.TB, l net.Listener, handle func(net.Conn)) {
	t.Helper()
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
}
