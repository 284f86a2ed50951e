package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
)

// certs are the certificates in force. They are exchanged as a whole; connections keep theirs.
type certs struct {
	dir string
	now atomic.Pointer[[]tls.Certificate]
}

func newCerts(dir string) (*certs, error) {
	c := &certs{dir: dir}
	return c, c.reload()
}

// reload reads the directory. On an error nothing changes.
func (c *certs) reload() error {
	names, err := filepath.Glob(filepath.Join(c.dir, "*.crt"))
	if err != nil {
		return err
	}
	slices.Sort(names)
	var list []tls.Certificate
	var errs []error
	for _, name := range names {
		pair, err := tls.LoadX509KeyPair(name, strings.TrimSuffix(name, ".crt")+".key")
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		list = append(list, pair)
	}
	if len(names) == 0 {
		errs = append(errs, fmt.Errorf("%s: no NAME.crt with a NAME.key", c.dir))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.now.Store(&list)
	return nil
}

// get chooses by the name that the client asks for; clients that ask for none, or for one that nobody has, get the first.
func (c *certs) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	list := *c.now.Load()
	for i := range list {
		if hello.ServerName != "" && list[i].Leaf.VerifyHostname(hello.ServerName) == nil && hello.SupportsCertificate(&list[i]) == nil {
			return &list[i], nil
		}
	}
	return &list[0], nil
}

// tlsConfig is how connections of clients are ended.
func (c *certs) tlsConfig(clientCA string, require bool) (*tls.Config, error) {
	t := &tls.Config{GetCertificate: c.get, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if clientCA == "" {
		return t, nil
	}
	b, err := os.ReadFile(clientCA)
	if err != nil {
		return nil, err
	}
	t.ClientCAs = x509.NewCertPool()
	if !t.ClientCAs.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("%s: no certificates in it", clientCA)
	}
	t.ClientAuth = tls.VerifyClientCertIfGiven
	if require {
		t.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return t, nil
}
