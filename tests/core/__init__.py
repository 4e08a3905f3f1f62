"""Tests of lengths, shapes and views."""
