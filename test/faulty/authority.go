package faulty

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"
)

// serverName is whom the server's certificates are for, whatever its address is.
const serverName = "example.com"

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// NewAuthority makes one with a key of its own.
func NewAuthority() (*Authority, error) {
	a := &Authority{}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, key, err := a.sign(template)
	if err != nil {
		return nil, err
	}
	a.key, a.pem = key, pemOf("CERTIFICATE", der)
	a.cert, err = x509.ParseCertificate(der)
	return a, err
}

// sign makes a key, and a certificate for it: its own, if the authority has none yet.
func (a *Authority) sign(template *x509.Certificate) (der []byte, key *ecdsa.PrivateKey, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	const bits = 64
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), bits)); err != nil {
		return nil, nil, fmt.Errorf("make serial number: %w", err)
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	if der, err = x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer); err != nil {
		return nil, nil, fmt.Errorf("sign certificate: %w", err)
	}
	return der, key, nil
}

// server makes a certificate for the server.
func (a *Authority) server() (tls.Certificate, error) {
	der, key, err := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: serverName}, DNSNames: []string{serverName}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// client makes a certificate for a client, and its key.
func (a *Authority) client() (cert, key []byte, err error) {
	der, private, err := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, nil, err
	}
	secret, err := x509.MarshalECPrivateKey(private)
	return pemOf("CERTIFICATE", der), pemOf("EC PRIVATE KEY", secret), err
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// CA returns its own certificate, by which clients know what it has signed.
func (a *Authority) CA() []byte { return a.pem }

// Certify gives the server a new certificate by an authority, or by the one that it has if that is nil, for all connections that come.
func (s *Server) Certify(by *Authority) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if by == nil {
		by = s.authority
	}
	cert, err := by.server()
	if err != nil {
		return err
	}
	s.authority, s.tls = by, s.tls.Clone()
	s.tls.Certificates = []tls.Certificate{cert}
	return nil
}

// CA returns the certificate of the server's authority.
func (s *Server) CA() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.authority.pem
}

// RequireCertificate takes no more connections but by clients with a certificate of a new authority, and returns one with its key.
func (s *Server) RequireCertificate() (cert, key []byte, err error) {
	a, err := NewAuthority()
	if err != nil {
		return nil, nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tls = s.tls.Clone()
	s.tls.ClientAuth, s.tls.ClientCAs = tls.RequireAndVerifyClientCert, pool
	return a.client()
}

// currentTLS is for tls.Config.GetConfigForClient.
func (s *Server) currentTLS(*tls.ClientHelloInfo) (*tls.Config, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tls, nil
}
