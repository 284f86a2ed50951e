package sslpersist_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/sslpersist"
)

// proxy is a TCP proxy that keeps TLS sessions on their server, and else takes its servers
// in turn. It decrypts nothing.
type proxy struct {
	farm    *sslpersist.Farm[string] // a node is the address of a server
	servers []string
	now     func() time.Time
	placed  func(server string, by sslpersist.Basis) // told of each connection, if not nil

	turn atomic.Uint32
	down sync.Map // servers that refused a connection a moment ago
}

func (p *proxy) serve(ln net.Listener) {
	for {
		client, err := ln.Accept()
		if err != nil {
			return
		}
		go p.handle(client)
	}
}

func (p *proxy) handle(client net.Conn) {
	defer client.Close()
	from, _ := netip.ParseAddrPort(client.RemoteAddr().String())
	conn := p.farm.Open(from.Addr())

	// Read until there is a hello, or something else; keep it for the server.
	var head []byte
	buf := make([]byte, 16<<10)
	for {
		n, err := client.Read(buf)
		head = append(head, buf[:n]...)
		if _, bad := conn.Client(buf[:n]); !errors.Is(bad, sslpersist.ErrShort) {
			break
		}
		if err != nil {
			return
		}
	}

	server := p.connect(conn)
	if server == nil {
		return
	}
	defer server.Close()
	if _, err := server.Write(head); err != nil {
		return
	}
	go p.copy(server, client, conn, func(b []byte) { _, _ = conn.Client(b) })
	p.copy(client, server, conn, func(b []byte) { _, _ = conn.Server(p.now(), b) })
}

// connect dials the server the session belongs to, else the next one that answers.
func (p *proxy) connect(conn *sslpersist.Conn[string]) net.Conn {
	for range 2 * len(p.servers) {
		choice := conn.Choose(p.now(), func(server string) sslpersist.Availability {
			if _, down := p.down.Load(server); down {
				return sslpersist.Down
			}
			return sslpersist.Up
		})
		addr := choice.Node
		if choice.By == sslpersist.ByMetric {
			addr = p.servers[int(p.turn.Add(1))%len(p.servers)]
		}
		server, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err != nil {
			p.down.Store(addr, true)
			continue
		}
		p.down.Delete(addr)
		conn.Bind(p.now(), addr)
		if p.placed != nil {
			p.placed(addr, choice.By)
		}
		return server
	}
	return nil
}

// copy hands each piece to feed before it goes on, so that what it teaches is known before
// the other side can act on it.
func (p *proxy) copy(to, from net.Conn, conn *sslpersist.Conn[string], feed func([]byte)) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			conn.Touch(p.now())
			if !conn.Done() {
				feed(buf[:n])
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if t, ok := to.(*net.TCPConn); ok && errors.Is(err, io.EOF) {
				_ = t.CloseWrite()
			} else {
				_ = to.Close()
			}
			return
		}
	}
}

// issue is all of a TLS server that the example needs: it issues one session ID, and resumes that one.
func issue(ln net.Listener, id byte) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			if _, err := c.Read(make([]byte, 4096)); err == nil {
				_, _ = c.Write(reply([]byte{id}))
			}
		}()
	}
}

// A TCP proxy that keeps TLS sessions on their server: who has none is sent to one after the other, and who shows a session ID to the
// server that issued it.
func Example_proxy() {
	farm, err := sslpersist.NewFarm(&sslpersist.Settings[string]{Tickets: true})
	if err != nil {
		log.Fatal(err)
	}
	placed := make(chan sslpersist.Basis, 1)
	p := &proxy{farm: farm, now: time.Now, placed: func(_ string, by sslpersist.Basis) { placed <- by }}
	var all [3]net.Listener
	for i := range all {
		if all[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			log.Fatal(err)
		}
		defer all[i].Close()
	}
	p.servers = []string{all[0].Addr().String(), all[1].Addr().String()}
	go issue(all[0], 0xa0)
	go issue(all[1], 0xb0)
	go p.serve(all[2])

	var id []byte
	for range 4 {
		h, err := connect(all[2].Addr().String(), id)
		fmt.Println("placed by", <-placed, "at", h.SessionID, err)
		id = h.SessionID.AppendTo(nil)
	}
	// Output:
	// placed by metric at b0 <nil>
	// placed by session ID at b0 <nil>
	// placed by session ID at b0 <nil>
	// placed by session ID at b0 <nil>
}

// connect sends a hello that offers a session, and reads the answer.
func connect(addr string, id []byte) (h sslpersist.ServerHello, err error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return h, err
	}
	defer c.Close()
	if _, err := c.Write(hello(id)); err != nil {
		return h, err
	}
	b := make([]byte, len(reply([]byte{0})))
	if _, err := io.ReadFull(c, b); err != nil {
		return h, err
	}
	return sslpersist.ParseServerHello(b)
}
