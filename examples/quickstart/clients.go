package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/lbprim/lbprim/examples/internal/lab"
)

const (
	clientAddrs = 8 // of the client, in each family

	patience = 10 * time.Second // of a client for one request
)

// clients ask the virtual addresses for things, as fast as they are told to, and write down what
// they saw.
type clients struct {
	host   lab.Host
	vip    func(s service, v6 bool) netip.AddrPort
	trust  *tls.Config
	ledger *ledger
	seed   uint64
	slower int // how much slower than usual they ask; 0: not
}

// run keeps asking until ctx is done.
func (c *clients) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for i, load := range []struct {
		ask     func(context.Context, *rand.Rand, request) (string, error)
		service service
		workers int
		pause   time.Duration
	}{
		{c.page, web, 6, 12 * time.Millisecond},
		{c.page, shop, 2, 25 * time.Millisecond},
		{c.datagram, echo, 2, 10 * time.Millisecond},
	} {
		pause := load.pause * time.Duration(1+c.slower)
		for w := range load.workers {
			rng := rand.New(rand.NewPCG(c.seed, uint64(i<<8|w)))
			wg.Go(func() {
				for n := w; ctx.Err() == nil; n++ {
					// The families take turns; a worker's addresses are its own, so that each client goes
					// on asking.
					r := request{service: load.service, v6: n%2 == 1, client: (w + load.workers*rng.IntN(clientAddrs)) % clientAddrs}
					c.once(ctx, rng, r, load.ask)
					sleep(ctx, pause/2+time.Duration(rng.Int64N(int64(pause))))
				}
			})
		}
	}
}

// once makes one request and writes it down, unless it was cut short by the end of the story.
func (c *clients) once(ctx context.Context, rng *rand.Rand, r request, ask func(context.Context, *rand.Rand, request) (string, error)) {
	r.start = time.Now()
	// The story's end must not look like a failure: what is under way may finish.
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	r.server, r.err = ask(limit, rng, r)
	r.end = time.Now()
	c.ledger.add(r)
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// dial connects from the request's client address.
func (c *clients) dial(ctx context.Context, network string, r request) (net.Conn, error) {
	return c.host.Dial(ctx, network, lab.ClientAddr(r.v6, r.client), c.vip(r.service, r.v6))
}

// page asks for a page over a connection of its own and compares every byte.
func (c *clients) page(ctx context.Context, rng *rand.Rand, r request) (server string, err error) {
	client := c.browser(r, false)
	defer client.CloseIdleConnections()
	return c.get(ctx, client, rng, r)
}

// browser is an HTTP client with the request's address.
func (c *clients) browser(r request, keep bool) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx, "tcp", r) },
		DisableKeepAlives:   !keep,
		DisableCompression:  true,
		TLSClientConfig:     c.trust,
		TLSHandshakeTimeout: patience,
	}}
}

func (c *clients) get(ctx context.Context, client *http.Client, rng *rand.Rand, r request) (server string, err error) {
	// Many small pages and a few large ones.
	n, salt := rng.IntN(4096), rng.IntN(256)
	if rng.IntN(16) == 0 {
		n = rng.IntN(largestPage)
	}
	scheme, host := "http", c.vip(r.service, r.v6).String()
	if r.service == shop {
		scheme, host = "https", shopName
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s://%s/%d/%d", scheme, host, n, salt), nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return "", err
	case resp.StatusCode != http.StatusOK:
		return "", fmt.Errorf("status %s", resp.Status)
	case !bytes.Equal(body, page(n, salt)):
		return "", errors.New("the page has other bytes than it should")
	}
	return resp.Header.Get("X-Server"), nil
}

// datagram sends one and waits for its echo.
func (c *clients) datagram(ctx context.Context, rng *rand.Rand, r request) (server string, err error) {
	conn, err := c.dial(ctx, "udp", r)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	sent := page(rng.IntN(1200), rng.IntN(256))
	if _, err := conn.Write(sent); err != nil {
		return "", err
	}
	b := make([]byte, 2048)
	n, err := conn.Read(b)
	if err != nil {
		return "", err
	}
	server, got, _ := strings.Cut(string(b[:n]), " ")
	if got != string(sent) {
		return "", errors.New("the echo has other bytes than were sent")
	}
	return server, nil
}

// stream keeps one connection open and asks over it now and then, until ctx is done. Losing the
// connection is a failure: it is not opened again.
func (c *clients) stream(ctx context.Context, number int) {
	rng := rand.New(rand.NewPCG(c.seed, uint64(1<<16|number)))
	r := request{service: web, v6: number%2 == 1, client: number % clientAddrs, stream: number}
	client := c.browser(r, true)
	defer client.CloseIdleConnections()
	t := client.Transport.(*http.Transport)
	dial, dialled := t.DialContext, false
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dialled {
			return nil, errors.New("the connection was lost")
		}
		dialled = true
		return dial(ctx, network, address)
	}
	for ctx.Err() == nil {
		c.once(ctx, rng, r, func(ctx context.Context, rng *rand.Rand, r request) (string, error) {
			return c.get(ctx, client, rng, r)
		})
		sleep(ctx, 40*time.Millisecond)
	}
}
