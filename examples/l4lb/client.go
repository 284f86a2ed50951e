package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/lbprim/lbprim/examples/internal/cli"
)

// client calls the admin interface of a running instance.
type client struct {
	socket, url, tokenFile, ca string
}

// flags declares where the running instance is.
func (c *client) flags(f *flag.FlagSet) {
	f.StringVar(&c.socket, "socket", cmp.Or(os.Getenv("L4LB_SOCKET"), defaultSocket), "`path` of the running instance's socket; also in L4LB_SOCKET")
	f.StringVar(&c.url, "url", "", "where an instance listens on TCP, as a `URL` such as https://lb1.example.net:9443")
	f.StringVar(&c.tokenFile, "token-file", "", "`file` with the token for -url")
	f.StringVar(&c.ca, "ca", "", "`file` with the certificates that may sign that of -url, in PEM; by default the system's")
}

// dial returns a client and what requests begin with.
func (c *client) dial() (*http.Client, string, string, error) {
	if c.url == "" {
		tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", c.socket)
		}}
		return &http.Client{Transport: tr}, "http://l4lb", "", nil
	}
	u, err := url.Parse(c.url)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, "", "", cli.Usage("-url %q: want one that begins with https://", c.url)
	}
	token, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return nil, "", "", fmt.Errorf("-token-file: %w", err)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.ca != "" {
		pem, err := os.ReadFile(c.ca)
		if err != nil {
			return nil, "", "", fmt.Errorf("-ca: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, "", "", fmt.Errorf("-ca: %s has no certificate in PEM", c.ca)
		}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: conf}}, "https://" + u.Host, strings.TrimSpace(string(token)), nil
}

// call sends a request; in and out may be nil.
func (c *client) call(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.open(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<28))
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(b, out)
}

// open sends a request and returns a good answer.
func (c *client) open(ctx context.Context, method, path string, in any) (*http.Response, error) {
	h, base, token, err := c.dial()
	if err != nil {
		return nil, err
	}
	body := []byte{}
	if in != nil {
		if body, err = json.Marshal(in); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := h.Do(req)
	if err != nil {
		return nil, c.explain(err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	var e errorReply
	if b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16)); json.Unmarshal(b, &e) == nil && e.Error != "" {
		return nil, errors.New(e.Error)
	}
	return nil, fmt.Errorf("%s %s: %s", method, path, resp.Status)
}

// explain says what to do where nobody answers.
func (c *client) explain(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if c.url == "" {
		return fmt.Errorf("no running l4lb at %s: %w; fix: start one with l4lb run, or say where it is with -socket or -url (this may need root)", c.socket, err)
	}
	return fmt.Errorf("no l4lb at %s: %w", c.url, err)
}

func (c *client) status(ctx context.Context) (s *statusReply, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	s = &statusReply{}
	return s, c.call(ctx, http.MethodGet, "/api/v1/status", nil, s)
}
